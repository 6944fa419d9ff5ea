/*
 * The command line. Each command is one function `int cmd_X(int argc, char **argv, struct err *e)`: argv[0] is the first word after the
 * command, 0 = ok, -1 = error whose code becomes the exit code (E_CHECK when a check failed after results were printed). Commands print
 * results to stdout, main prints errors to stderr and exits. This folder is the only place that does either.
 */
#ifndef CLI_CLI_H
#define CLI_CLI_H

#include "core/err.h"
#include "core/opt.h"
#include "core/str.h"
#include "kernels/backend.h"

struct cmd {
    const char *name, *summary;
    int (*run)(int argc, char **argv, struct err *e);
};
extern const struct cmd commands[];
extern const size_t n_commands;

/* Options that every command takes; append COMMON_OPTS(c) to its table. */
struct common {
    bool json, quiet, help;
    const char *device, *dtype, *gpu_dtype, *log_level; /* dtype NULL: not given; a GPU then computes in gpu_dtype */
    int64_t threads, seed;
    double memory_limit_bytes; /* of commands that run stages; 0 = what the device has */
};
#define COMMON_INIT {.device = "auto", .gpu_dtype = "f32", .log_level = "info", .threads = 0, .seed = 42}
extern const char *const device_words[], *const dtype_words[], *const level_words[];
#define COMMON_OPTS(c)                                                                                                                           \
    {.name = "dtype", .type = OPT_STR, .dst = &(c)->dtype, .arg = "f32|bf16", .words = dtype_words, .help = "activations on the GPU (f32 where neither the command nor the manifest's scale says bf16)", .group = "Common"},        \
    COMMON_OPTS_BUT_DTYPE(c)
#define COMMON_OPTS_BUT_DTYPE(c) /* for commands whose --dtype is another */                                                                     \
    {.name = "json", .type = OPT_BOOL, .dst = &(c)->json, .help = "one JSON document on stdout, nothing else", .group = "Common"},               \
    {.name = "device", .type = OPT_STR, .dst = &(c)->device, .arg = "cpu|cuda|auto", .words = device_words, .help = "where to compute", .group = "Common"},      \
    {.name = "threads", .type = OPT_I64, .dst = &(c)->threads, .arg = "N", .lo = 0, .hi = 1024, .help = "host threads, 0 = all cores", .group = "Common"},        \
    {.name = "seed", .type = OPT_I64, .dst = &(c)->seed, .arg = "N", .lo = 0, .hi = 4294967295.0, .help = "random seed", .group = "Common"},                      \
    {.name = "log-level", .type = OPT_STR, .dst = &(c)->log_level, .arg = "LEVEL", .words = level_words, .help = "error, warn, info or debug", .group = "Common"}, \
    {.name = "quiet", .type = OPT_BOOL, .dst = &(c)->quiet, .help = "no progress line, warnings only", .group = "Common"},                        \
    {.name = "help", .type = OPT_BOOL, .dst = &(c)->help, .help = "this text", .group = "Common"}

/* A command's help and synopsis, and its parse: handles --help (prints to stdout; *done = true), applies log level and quiet. */
struct cmd_spec {
    const char *synopsis, *about, *examples;
    const struct opt *opts;
    size_t n_opts;
    size_t min_pos, max_pos;
};
int cli_parse(const struct cmd_spec *s, struct common *c, int argc, char **argv, const char **pos, size_t *n_pos, bool *done,
              struct err *e);

/* Two-word commands ("model info"): picks the sub command; unknown words get the nearest. */
int cli_sub(const char *parent, const struct cmd *subs, size_t n, int argc, char **argv, struct err *e);

/* The process' pool and a backend from the common options ("auto": cuda when built and present, else cpu). name overrides ("ref64").
 * Closed by cli_close. */
struct cli_rt {
    struct pool *pool;
    struct backend *be;
};
int cli_open(struct cli_rt *rt, const struct common *c, const char *name, struct err *e);
void cli_close(struct cli_rt *rt);

/* What a GPU computes in: "f32" or "bf16". */
const char *cli_dtype(const struct common *c);

/* A size: "95.6GiB", "512MiB", "40G" (1000s), bytes; false when it is none. */
bool cli_parse_bytes(const char *s, double *out);

/* Where the bundled files are: $DASHLAB_HOME, the source tree when run from it, or PREFIX/share/dashlab. rel e.g.
 * "experiments/tiny/teacher". */
int cli_bundled(char dst[1024], const char *rel, struct err *e);

/* Commands, one file cmd_X.c each. */
#define CMD(x) int cmd_##x(int argc, char **argv, struct err *e)
CMD(reproduce);
CMD(align);
CMD(search);
CMD(select);
CMD(distill);
CMD(train);
CMD(data);
CMD(model);
CMD(ppl);
CMD(ruler);
CMD(lmeval);
CMD(bench);
CMD(report);
CMD(regress);
CMD(status);
CMD(check);
CMD(verify);
CMD(doctor);
#undef CMD

#endif
