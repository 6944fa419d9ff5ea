/* check: whether a manifest, or a collection, is valid at every scale that it has. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "cli/repro.h"

/* Inputs and sizes of one manifest; *missing: inputs that are not there, *bundled those of them that no user has to bring. */
static void print_part(const struct part *t, int *missing, int *bundled, const struct node **most)
{
    printf("%s: scale %s: %zu stages, %zu runs, %zu reports: valid\n", t->m.path, t->m.scale, t->m.n_stages, t->p.n, t->m.n_reports);
    for (size_t i = 0; i < t->m.n_inputs; i++) {
        const struct input *in = &t->m.inputs[i];
        bool have = file_exists(in->path) || dir_exists(in->path);
        printf("input %-12s %-40s %s%s%s\n", in->name, in->path, have ? "found" : "MISSING", !have && *in->get ? "; to get it: " : "",
               have ? "" : in->get);
        *missing += !have;
        *bundled += !have && !*in->get;
    }
    for (size_t i = 0; i < t->p.n; i++)
        if (!t->p.nodes[i]->stage->borrow && (!*most || t->p.nodes[i]->cost.memory_bytes > (*most)->cost.memory_bytes))
            *most = t->p.nodes[i];
}

static int check_scale(struct repro *r, int *missing, int *bundled, struct err *e)
{
    const struct node *most = NULL;
    const int before = *missing;
    r->estimate = true;
    r->gflops = 1; /* no times are printed */
    TRY(repro_open(r, e));
    for (size_t i = 0; i < r->n_parts; i++)
        print_part(&r->part[i], missing, bundled, &most);
    if (most && most->cost.memory_bytes > 0)
        printf("memory: at most %.2f GiB (stage '%s' %s), weights, activations and optimiser state as planned; this machine has %.1f GiB\n",
               most->cost.memory_bytes / (1 << 30), most->stage->id, most->point,
               (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE) / (1 << 30));
    else if (!most)
        printf("memory: nothing is run\n");
    else
        printf("memory: %s\n", *missing > before ? "not known while an input is missing" : "of none of these runs it is estimated");
    repro_close(r);
    return 0;
}

/* Every scale that the manifest has; the first that is not valid ends it. Inputs that users bring may be missing. */
static int check_scales(const struct repro *given, struct err *e)
{
    static const char *const order[] = {"tiny", "ci", "small", "paper"}; /* what is wrong at every scale is said of the default one */
    int missing = 0, bundled = 0, had = 0;
    struct err lacks = ERR_INIT;
    for (size_t i = 0; i < ARRAY_LEN(order); i++) {
        struct repro r = *given;
        struct err own = ERR_INIT;
        r.scale = order[i];
        if (check_scale(&r, &missing, &bundled, &own) == 0) {
            had++;
        } else if (repro_lacks_scale(&own)) {
            lacks = own;
        } else {
            *e = own;
            return -1;
        }
    }
    if (!had) {
        *e = lacks;
        return -1;
    }
    return bundled ? ERR(e, E_INPUT, "%d input%s missing", bundled, bundled == 1 ? " is" : "s are") : 0;
}

static int print_schema(struct repro *r)
{
    struct str s = STR_INIT;
    registry_init(&r->reg, &r->env);
    manifest_schema(&s, &r->reg);
    fputs(str_c(&s), stdout);
    str_free(&s);
    return 0;
}

int cmd_check(int argc, char **argv, struct err *e)
{
    struct repro r = REPRO_INIT;
    bool schema = false;
    r.scale = NULL;
    const struct opt opts[] = {
        REPRO_OPTS(&r),
        {.name = "schema", .type = OPT_BOOL, .dst = &schema, .help = "print the manifest schema", .group = "Manifest"},
        COMMON_OPTS(&r.c)};
    const struct cmd_spec spec = {
        .synopsis = "dashlab check MANIFEST [--scale SCALE] | --schema",
        .about = "Validates a manifest at every scale that it has, or at one: schema, references, checks, inputs. An "
                 "input that users have to bring may be missing, unless --scale asks for its scale.",
        .examples = "  dashlab check experiments/table1.yaml\n  dashlab check experiments/table1.yaml --scale paper",
        .opts = opts,
        .n_opts = ARRAY_LEN(opts),
        .max_pos = 1};
    size_t n;
    bool done;
    int missing = 0, bundled = 0;
    TRY(cli_parse(&spec, &r.c, argc, argv, &r.manifest, &n, &done, e));
    if (done)
        return 0;
    if (schema)
        return print_schema(&r);
    if (n < 1)
        return ERR(e, E_USAGE, "a manifest is needed, or --schema");
    if (!r.scale)
        return check_scales(&r, e);
    TRY(check_scale(&r, &missing, &bundled, e));
    return missing ? ERR(e, E_INPUT, "%d input%s missing", missing, missing == 1 ? " is" : "s are") : 0;
}
