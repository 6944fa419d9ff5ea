/* Stage kind: inference, timed. Its results are times and peaks of this machine, so two runs of it never agree to the bit. */
#include "cli/bench_infer.h"
#include "cli/stages_cost.h"
#include "cli/stages_work.h"

static const struct param_spec infer_params[] = {
    {.name = "model", .type = PT_REF, .help = "a teacher or distill runs", .fan = true},
    {.name = "contexts", .type = PT_INTS, .unit = "tokens", .lo = 1, .hi = 16777216, .help = "prompt lengths"},
    {.name = "sequences", .type = PT_INT, .def = "16", .lo = 1, .hi = 4096, .help = "batch size"},
    {.name = "decode", .type = PT_INT, .unit = "tokens", .def = "256", .lo = 1, .hi = 1048576, .help = "decoded after each prompt"},
    {.name = "warmup", .type = PT_INT, .unit = "rounds", .def = "3", .lo = 0, .hi = 64, .help = "untimed rounds"},
    {.name = "reps",
     .type = PT_INT,
     .unit = "rounds",
     .def = "10",
     .lo = 1,
     .hi = INFER_MAX_REPS,
     .help = "timed rounds; the median is shown"},
    {.name = "piece",
     .type = PT_INT,
     .unit = "tokens",
     .def = "8192",
     .lo = 0,
     .hi = 1048576,
     .help = "most prompt tokens in one forward, one sequence after another; 0 = the prompts of all sequences in one"},
    {.name = "memory_gib",
     .type = PT_NUM,
     .unit = "GiB",
     .def = "0.0",
     .lo = 0,
     .hi = 1e6,
     .help = "lengths predicted to need more are not tried; 0 = no limit"},
    {.name = "seed", .type = PT_INT, .def = "0", .lo = 0, .hi = 4294967295.0, .help = "of the random prompts"},
};

static void put_row(struct str *s, int64_t context, const struct infer_run *r)
{
    if (s->len == 0)
        str_puts(s, "context\tfits\tneed_bytes\tcache_bytes\tprefill_s\tprefill_lo\tprefill_hi\tprefill_peak\tdecode_s\tdecode_lo\tdecode_"
                    "hi\tdecode_peak\n");
    str_printf(s, "%" PRId64 "\t%s\t%.0f\t%.0f", context, r->fits ? "yes" : "no", r->need_bytes, r->cache_bytes);
    if (r->fits)
        str_printf(s, "\t%.9g\t%.9g\t%.9g\t%.0f\t%.9g\t%.9g\t%.9g\t%.0f\n", r->prefill.median, r->prefill.lo, r->prefill.hi,
                   r->prefill_peak, r->step.median, r->step.lo, r->step.hi, r->decode_peak);
    else
        str_puts(s, "\t-\t-\t-\t-\t-\t-\t-\t-\n");
}

static int infer_each(const struct node *n, struct model *m, struct str *rows, int64_t *fits, struct err *e)
{
    int64_t contexts[64];
    size_t k = node_list_i64(n, "contexts", contexts, ARRAY_LEN(contexts));
    for (size_t i = 0; i < k; i++) {
        struct infer_opts o = {.context = contexts[i],
                               .decode = node_i64(n, "decode"),
                               .batch = (int32_t)node_i64(n, "sequences"),
                               .warmup = (int)node_i64(n, "warmup"),
                               .reps = (int)node_i64(n, "reps"),
                               .piece = node_i64(n, "piece"),
                               .limit_bytes = node_f64(n, "memory_gib") * 1073741824,
                               .seed = (uint64_t)node_i64(n, "seed")};
        struct infer_run r;
        TRY(bench_infer(m, &o, &r, e));
        put_row(rows, contexts[i], &r);
        *fits += r.fits;
    }
    return 0;
}

static int infer_stage(void *ctx, const struct node *n, struct run *r, struct err *e)
{
    struct env *env = ctx;
    struct model *m = NULL;
    struct model_open_opts mo = {0};
    struct result res;
    struct str rows = STR_INIT;
    char path[1024], mp[1024], file[1024];
    int64_t fits = 0;
    TRY(env_backend(env, e));
    if (env->teacher) { /* its weights must not count */
        model_close(env->teacher);
        env->teacher = NULL;
    }
    TRY(model_open(&m, env->rt.be, model_path(node_path(n, "model", path), mp), &mo, e));
    int rc = infer_each(n, m, &rows, &fits, e);
    if (rc == 0)
        rc = file_write(path_join(file, r->out, "infer.tsv"), str_c(&rows), rows.len, e);
    if (rc == 0) {
        result_begin(&res);
        jw_kstr(&res.w, "device", env->rt.be->desc);
        jw_kstr(&res.w, "precision", env->rt.be->act == DT_BF16 ? "bfloat16" : "float32");
        jw_ki64(&res.w, "parameters", mcfg_params(&m->cfg));
        jw_ki64(&res.w, "fits", fits);
        rc = result_save(&res, r, e);
    }
    str_free(&rows);
    model_close(m);
    return rc;
}

const struct stage_kind kind_infer = {.name = "infer",
                                      .about = "prefill and decoding, timed over context lengths, with peak memory",
                                      .version = 1,
                                      .params = infer_params,
                                      .n_params = ARRAY_LEN(infer_params),
                                      .plan = stage_plan, .run = infer_stage};
