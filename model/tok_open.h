/* A tokenizer from anything that `--model` or `--tokenizer` takes: a tokenizer.json, a folder, or a GGUF file. */
#ifndef MODEL_TOK_OPEN_H
#define MODEL_TOK_OPEN_H

#include "core/err.h"
#include "model/gguf.h"

struct tok;
/* pretok: see tok_load; for a GGUF file it replaces tokenizer.ggml.pre. */
int tok_open(struct tok **out, const char *path, const char *pretok, struct err *e);
int tok_from_gguf(struct tok **out, const struct gguf *g, const char *pretok, struct err *e);

#endif
