/* Any bytes as a manifest: typed or refused with a place, and what is accepted can be planned and printed without reading any file it
 * names. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "experiments/plan.h"
#include "experiments/show.h"
#include "tests/fuzz/folder.h"

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n);

static const char *const words[] = {"red", "green", NULL};
static const struct param_spec make_params[] = {{.name = "source", .type = PT_REF, .help = "an input"},
                                                {.name = "n", .type = PT_INT, .def = "3", .lo = 1, .hi = 1000, .help = "a number"},
                                                {.name = "list", .type = PT_NUMS, .def = "1.0,2.0", .help = "numbers"},
                                                {.name = "names", .type = PT_STRS, .def = "", .help = "texts"},
                                                {.name = "flag", .type = PT_BOOL, .def = "false", .help = "a switch"},
                                                {.name = "word", .type = PT_WORD, .def = "red", .words = words, .help = "a word"}};
static const struct param_spec use_params[] = {{.name = "what", .type = PT_REF, .help = "stages", .fan = true},
                                               {.name = "extra", .type = PT_REFS, .def = "", .help = "more stages"},
                                               {.name = "rate", .type = PT_NUM, .help = "a rate"}};
static int plan_cost(void *env, const struct node *n, struct stage_cost *c, struct err *e)
{
    (void)env;
    (void)e;
    c->tokens = node_i64(n, "n");
    double list[8];
    c->flops = (double)node_list_f64(n, "list", list, 8);
    return 0;
}
static int plan_rate(void *env, const struct node *n, struct stage_cost *c, struct err *e)
{
    (void)env;
    (void)e;
    c->flops = node_f64(n, "rate");
    return 0;
}
static const struct stage_kind kind_make = {.name = "make", .about = "", .version = 1, .params = make_params,
                                            .n_params = ARRAY_LEN(make_params), .plan = plan_cost};
static const struct stage_kind kind_use = {.name = "use", .about = "", .version = 1, .by_content = true, .params = use_params,
                                           .n_params = ARRAY_LEN(use_params), .plan = plan_rate};
static const struct stage_kind *const kinds[] = {&kind_make, &kind_use};
static const char *const reports[] = {"table"};
static const struct registry reg = {.kinds = kinds, .n = ARRAY_LEN(kinds), .report_kinds = reports, .n_report_kinds = 1};

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n)
{
    char path[1024];
    struct manifest m;
    struct plan plan;
    struct err e = ERR_INIT;
    const uint8_t *z = n ? memchr(p, 0, n) : NULL;
    size_t own = z ? (size_t)(z - p) : n;
    fuzz_put("m.yaml", p, own);
    fuzz_put("base.yaml", z ? z + 1 : NULL, z ? n - own - 1 : 0);
    int rc = manifest_load(&m, path_join(path, fuzz_dir, "m.yaml"), "tiny", &reg, &e);
    if (rc != 0) {
        if (e.code == E_OK || !e.msg[0])
            abort();
        return 0;
    }
    size_t runs = 0; /* a manifest may ask for millions of runs: that is not what is tested */
    for (size_t i = 0; i < m.n_stages; i++) {
        runs += 1 + m.stages[i].n_points;
        for (size_t k = 0; k < m.stages[i].n_matrix; k++)
            runs += strlen(m.stages[i].matrix[k].value);
    }
    for (size_t i = 0; i < m.n_inputs; i++)
        m.inputs[i].path = "/nonexistent";
    struct err pe = ERR_INIT;
    if (runs < 60 && plan_make(&plan, &m, &reg, "/nonexistent/runs", &pe) == 0) {
        struct str s = STR_INIT;
        plan_print(&plan, false, &s);
        plan_print(&plan, true, &s);
        for (size_t i = 0; i < plan.n; i++)
            node_yaml(plan.nodes[i], &s);
        str_free(&s);
        plan_free(&plan);
    } else if (runs < 60 && (pe.code == E_OK || !pe.msg[0]))
        abort();
    manifest_free(&m);
    return 0;
}
