/* What the model commands share: texts and ids from files, a model from the common options. */
#ifndef CLI_IDS_H
#define CLI_IDS_H

#include "cli/cli.h"
#include "model/model.h"
#include "model/tok.h"

/*
 * Ids from a file: .u16 and .i32 (little-endian integers), .safetensors (its tensor input_ids), else text: a JSON array, a JSON object with
 * "ids", or whole numbers separated by spaces, commas or line ends. "-" is standard input (text).
 */
int ids_parse(const char *name, const char *text, struct tok_ids *out, struct err *e); /* the text forms */
int ids_read(const char *path, struct tok_ids *out, struct err *e);
/* The whole of a file, or of standard input for "-". */
int text_read(const char *path, struct str *out, struct err *e);
/* Exactly one of text, file and ids must be given; text is encoded with what the tokenizer puts before and after it when special is set. */
int ids_from(const struct tok *t, const char *text, const char *file, const char *ids, bool special, struct tok_ids *out, struct err *e);
void print_str(const struct str *s); /* to stdout */

/* Entries of option tables. */
#define O_FLAG(name_, dst_, help_, group_)                                                                                                 \
    {                                                                                                                                      \
        .name = name_, .type = OPT_BOOL, .dst = dst_, .help = help_, .group = group_                                                       \
    }
#define O_STR(name_, dst_, arg_, help_, group_)                                                                                            \
    {                                                                                                                                      \
        .name = name_, .type = OPT_STR, .dst = dst_, .arg = arg_, .help = help_, .group = group_                                           \
    }
#define O_WORD(name_, dst_, arg_, words_, help_, group_)                                                                                   \
    {                                                                                                                                      \
        .name = name_, .type = OPT_STR, .dst = dst_, .arg = arg_, .words = words_, .help = help_, .group = group_                          \
    }
#define O_INT(name_, dst_, lo_, hi_, help_, group_)                                                                                        \
    {                                                                                                                                      \
        .name = name_, .type = OPT_I64, .dst = dst_, .arg = "N", .lo = lo_, .hi = hi_, .help = help_, .group = group_                      \
    }
#define MODEL_OPTS(tokenizer_, pretok_)                                                                                                    \
    O_STR("tokenizer", tokenizer_, "PATH", "a tokenizer in place of the model's own", "Model"),                                            \
        O_STR("pretok", pretok_, "NAME", "split rule of an unknown vocab.json", "Model")

/* Subcommands of `model`, by file: cmd_model_file.c (info, tensors, convert), cmd_model_text.c (tokenize), cmd_model_run.c (logprobs,
 * forward, generate). */
int model_info(int argc, char **argv, struct err *e);
int model_tensors(int argc, char **argv, struct err *e);
int model_convert(int argc, char **argv, struct err *e);
int model_tokenize(int argc, char **argv, struct err *e);
int model_logprobs(int argc, char **argv, struct err *e);
int model_forward(int argc, char **argv, struct err *e);
int model_generate(int argc, char **argv, struct err *e);

#endif
