/* Stage kind: the landscape of a budget. */
#include "cli/stages_cost.h"
#include "cli/stages_work.h"
#include "dash/landscape.h"

static const struct param_spec landscape_params[] = {
    P_MODEL,
    P_LINEAR,
    P_DATA,
    P_HIDDEN,
    {.name = "budget", .type = PT_INT, .unit = "layers", .lo = 0, .hi = 255, .help = "Full layers of the sets"},
    {.name = "micro", .type = PT_INT, .unit = "rows", .def = "4", .lo = 1, .hi = 64, .help = "rows computed at once", .free = true},
    {.name = "tau", .type = PT_NUM, .def = "1.0", .lo = 0.01, .hi = 100, .help = "temperature of the KL"},
    P_ROWS,
};

static int landscape_stage(void *ctx, const struct node *n, struct run *r, struct err *e)
{
    struct env *env = ctx;
    struct work w;
    struct result res;
    int64_t sets = 0;
    TRY(env_backend(env, e));
    TRY(work_open(&w, env, n, true, true, true, e));
    int rc = work_rows(&w, n, e);
    struct landscape_opts o = {.full = (int)node_i64(n, "budget"), .row_lo = w.data.rows - w.heldout, .row_hi = w.data.rows,
                               .micro = node_i64(n, "micro"), .tau = node_f64(n, "tau")};
    if (rc == 0)
        rc = landscape_run(w.teacher, w.lin, &w.data, w.hidden, &o, r->out, r->work, &sets, e);
    if (rc == 0) {
        result_begin(&res);
        jw_ki64(&res.w, "sets", sets);
        jw_ki64(&res.w, "rows", w.heldout);
        rc = result_save(&res, r, e);
    }
    work_close(&w);
    return rc;
}

const struct stage_kind kind_landscape = {.name = "landscape", .about = "untrained KL of every binary set of a budget", .version = 1,
                                          .params = landscape_params, .n_params = ARRAY_LEN(landscape_params), .plan = stage_plan,
                                          .run = landscape_stage};
