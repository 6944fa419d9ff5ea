/* A tokenizer from anything that `--model` or `--tokenizer` takes: a tokenizer.json, a folder, or a GGUF file. */
#ifndef MODEL_TOK_OPEN_H
#define MODEL_TOK_OPEN_H

#include "core/err.h"
#include "model/gguf.h"

struct tok;
/* pretok: see tok_load; for a GGUF file it replaces tokenizer.ggml.pre. */
int tok_open(struct tok **out, const char *path, const char *pretok, struct err *e);
int tok_from_gguf(struct tok **out, const struct gguf *g, const char *pretok, struct err *e);

/*
 * Writes tokenizer.json and tokenizer_config.json (with the chat template) for a GGUF file's tokenizer into a folder, reads them back and
 * compares the identities (tok_sha256); a difference is E_CHECK.
 */
int tok_export_gguf(const struct gguf *g, const char *pretok, const char *dir, struct err *e);

#endif
