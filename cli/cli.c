/* What the commands share: option handling, sub commands, pool and backend, bundled files. */
#include "cli/cli.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/fs.h"
#include "core/log.h"
#include "core/prog.h"
#include "core/prov.h"
#include "kernels/ops.h"

const char *const device_words[] = {"cpu", "cuda", "auto", NULL};
const char *const dtype_words[] = {"f32", "bf16", NULL};
const char *const level_words[] = {"error", "warn", "info", "debug", NULL};

int cli_parse(const struct cmd_spec *s, struct common *c, int argc, char **argv, const char **pos, size_t *n_pos, bool *done, struct err *e)
{
    struct str help = STR_INIT;
    *done = false;
    if (opt_given(s->opts, s->n_opts, argc, argv, "help")) /* made before parsing: the defaults shown are those of the table */
        opt_help(&help, s->synopsis, s->about, s->examples, s->opts, s->n_opts);
    int rc = opt_parse(s->opts, s->n_opts, argc, argv, pos, s->max_pos, n_pos, e);
    if (rc == 0 && c->help) {
        fputs(str_c(&help), stdout);
        *done = true;
    }
    str_free(&help);
    if (rc != 0 || *done)
        return rc;
    if (*n_pos < s->min_pos)
        return ERR(e, E_USAGE, "%zu more argument%s needed; usage: %s", s->min_pos - *n_pos, s->min_pos - *n_pos == 1 ? "" : "s",
                   s->synopsis);
    for (int i = 0; level_words[i]; i++)
        if (!strcmp(level_words[i], c->log_level))
            log_set_level((enum log_level)i);
    if (c->quiet) {
        prog_quiet(true);
        if (log_get_level() > LOG_WARN)
            log_set_level(LOG_WARN);
    }
    return 0;
}

int cli_sub(const char *parent, const struct cmd *subs, size_t n, int argc, char **argv, struct err *e)
{
    if (argc < 1 || !strcmp(argv[0], "--help") || !strcmp(argv[0], "-h")) {
        FILE *f = argc < 1 ? stderr : stdout;
        fprintf(f, "usage: dashlab %s COMMAND [OPTIONS]\n\n", parent);
        for (size_t i = 0; i < n; i++)
            fprintf(f, "  %-10s %s\n", subs[i].name, subs[i].summary);
        return argc < 1 ? ERR(e, E_USAGE, "'%s' needs a command", parent) : 0;
    }
    for (size_t i = 0; i < n; i++)
        if (!strcmp(argv[0], subs[i].name))
            return subs[i].run(argc - 1, argv + 1, e);
    const char *words[32];
    for (size_t i = 0; i < n && i < ARRAY_LEN(words); i++)
        words[i] = subs[i].name;
    const char *near = nearest_word(argv[0], words, n);
    return ERR(e, E_USAGE, "unknown command '%s %s'%s%s%s", parent, argv[0], near ? ", did you mean '" : "", near ? near : "",
               near ? "'?" : "");
}

const char *cli_dtype(const struct common *c)
{
    return c->dtype ? c->dtype : c->gpu_dtype;
}

int cli_open(struct cli_rt *rt, const struct common *c, const char *name, struct err *e)
{
    *rt = (struct cli_rt){0};
    TRY(pool_open(&rt->pool, (int)c->threads, e));
    struct backend_opts o = {.name = name ? name : !strcmp(c->device, "auto") ? "cuda" : c->device, .pool = rt->pool,
                             .mem_limit_bytes = (int64_t)c->memory_limit_bytes,
                             .act = strcmp(cli_dtype(c), "bf16") ? DT_F32 : DT_BF16};
    int rc = -1;
    if (!name && !strcmp(c->device, "auto")) {
        struct err ignored = ERR_INIT;
        rc = backend_open(&rt->be, &o, &ignored);
        o.name = "cpu";
    }
    if (rc != 0 && backend_open(&rt->be, &o, e) != 0) {
        cli_close(rt);
        return -1;
    }
    if (!strcmp(rt->be->ops->name, "cpu") && c->dtype && o.act == DT_BF16)
        log_warn("--dtype bf16 has an effect on the GPU only; the CPU computes in float32");
    prov_set("device", rt->be->desc);
    prov_set("determinism", rt->be->determinism);
    return 0;
}

void cli_close(struct cli_rt *rt)
{
    if (rt->be)
        backend_close(rt->be);
    if (rt->pool)
        pool_close(rt->pool);
    *rt = (struct cli_rt){0};
}

bool cli_parse_bytes(const char *s, double *out)
{
    static const struct {
        const char *unit;
        double factor;
    } units[] = {{"", 1},          {"k", 1e3},           {"M", 1e6},  {"G", 1e9},  {"KiB", 1024.0},
                 {"MiB", 1048576.0}, {"GiB", 1073741824.0}, {"kB", 1e3}, {"MB", 1e6}, {"GB", 1e9}};
    char *end;
    double v = strtod(s, &end);
    for (size_t i = 0; end != s && v >= 0 && v < 1e18 && i < ARRAY_LEN(units); i++)
        if (!strcmp(end, units[i].unit)) {
            *out = v * units[i].factor;
            return true;
        }
    return false;
}

int cli_bundled(char dst[1024], const char *rel, struct err *e)
{
    const char *home = getenv("DASHLAB_HOME");
    const char *roots[] = {home, ".", DASHLAB_SOURCE, DASHLAB_PREFIX "/share/dashlab"};
    for (size_t i = 0; i < ARRAY_LEN(roots); i++) {
        if (!roots[i])
            continue;
        if (strlen(roots[i]) + strlen(rel) + 2 > 1024)
            continue;
        path_join(dst, roots[i], rel);
        if (access(dst, R_OK) == 0)
            return 0;
    }
    return ERR(e, E_INPUT, "'%s' not found (looked in $DASHLAB_HOME, here, in the source tree and in " DASHLAB_PREFIX "/share/dashlab)", rel);
}
