/* verify, doctor. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/stages.h"
#include "core/prov.h"
#include "kernels/ops.h"

int cmd_verify(int argc, char **argv, struct err *e)
{
    struct common c = COMMON_INIT;
    const struct opt opts[] = {COMMON_OPTS(&c)};
    const struct cmd_spec spec = {.synopsis = "dashlab verify RUN",
                                  .about = "Checks every file of a complete run against its OUTPUTS hashes.",
                                  .examples = "  dashlab verify runs/align-0123456789ab", .opts = opts, .n_opts = ARRAY_LEN(opts),
                                  .min_pos = 1, .max_pos = 1};
    const char *pos[1];
    size_t n;
    bool done;
    int64_t files = 0;
    TRY(cli_parse(&spec, &c, argc, argv, pos, &n, &done, e));
    if (done)
        return 0;
    TRY(run_readable(pos[0], e));
    TRY(run_verify(pos[0], &files, e));
    printf("%s: %" PRId64 " files as recorded\n", pos[0], files);
    return 0;
}

static bool have_program(const char *name)
{
    char path[1024];
    const char *p = getenv("PATH");
    for (; p && *p; p += strcspn(p, ":"), p += *p == ':') {
        snprintf(path, sizeof path, "%.*s/%s", (int)MIN(strcspn(p, ":"), (size_t)900), p, name);
        if (access(path, X_OK) == 0)
            return true;
    }
    return false;
}

int cmd_doctor(int argc, char **argv, struct err *e)
{
    struct common c = COMMON_INIT;
    const struct opt opts[] = {COMMON_OPTS(&c)};
    const struct cmd_spec spec = {.synopsis = "dashlab doctor",
                                  .about = "What this build and machine can do, and what a missing piece disables.",
                                  .examples = "  dashlab doctor", .opts = opts, .n_opts = ARRAY_LEN(opts)};
    size_t n;
    bool done;
    TRY(cli_parse(&spec, &c, argc, argv, NULL, &n, &done, e));
    if (done)
        return 0;
    printf("dashlab %s, commit %.12s%s, %s\n", build_version, build_commit, build_dirty ? " (modified)" : "", build_compiler);
    static const char *const names[] = {"cpu", "cuda"};
    struct pool *pool;
    TRY(pool_open(&pool, (int)c.threads, e));
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        struct backend *be = NULL;
        struct backend_opts o = {.name = names[i], .pool = pool};
        struct err why = ERR_INIT;
        if (backend_open(&be, &o, &why) == 0)
            printf("%-10s %s, determinism %s\n", names[i], be->desc, be->determinism);
        else
            printf("%-10s no: %s\n", names[i], why.msg);
        if (be)
            backend_close(be);
    }
    pool_close(pool);
    printf("%-10s %s\n", "gnuplot", have_program("gnuplot") ? "found" : "missing: figures keep their data and script, without the picture");
    char path[1024];
    struct err why = ERR_INIT;
    static const char *const files[] = {"experiments/table1.yaml", "experiments/tiny/teacher/model.safetensors", "ruler/data/essay.txt.zst",
                                        "reports/style.gp", "baselines/index_sets.tsv"};
    for (size_t i = 0; i < ARRAY_LEN(files); i++)
        printf("%-10s %s\n", "bundled", cli_bundled(path, files[i], &why) == 0 ? path : why.msg);
    return 0;
}
