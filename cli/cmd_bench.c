/* bench: operators, training steps, prefill; without a sub command the summary of what the speed goals are stated in. */
#include "cli/cli.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/bench_infer.h"
#include "cli/bench_infer.h"
#include "cli/bench_ruler.h"
#include "cli/bench_step.h"
#include "cli/ids.h"
#include "core/fs.h"
#include "core/jwrite.h"
#include "core/log.h"
#include "kernels/bench.h"
#include "kernels/host.h"

/* The product whose rate steps and prefill are measured against, on the host and on a device. */
#define GEMM_SHAPE "m=512,n=1536,k=576"
#define GEMM_SHAPE_DEVICE "m=8192,n=11008,k=2048"
static const char *const compare_words[] = {"openblas", NULL};

/* Where results go: a table, or the members of a JSON object that is printed at the end. */
struct bench {
    struct common c;
    struct cli_rt rt;
    struct bench_peak peak;
    struct bench_blas blas;
    struct str text;
    struct jw w;
    double gemm; /* GFLOP/s of GEMM_SHAPE; the faster of the measurements made so far */
    double ratio_min;
};
#define BENCH_INIT {.c = COMMON_INIT, .text = STR_INIT, .ratio_min = INFINITY}

static void kopt(struct jw *w, const char *key, double v)
{
    if (finite_f64(v))
        jw_kf64(w, key, v);
}

/* Times taken beside other work say little; the reader should know. */
static void warn_if_busy(struct bench *b)
{
    struct str text = STR_INIT;
    struct err ignored = ERR_INIT;
    double load;
    int threads = b->rt.pool ? pool_threads(b->rt.pool) : 1;
    if (file_exists("/proc/loadavg") && file_read("/proc/loadavg", 256, &text, &ignored) == 0 && (load = strtod(str_c(&text), NULL)) > 0) {
        jw_kf64(&b->w, "load_before", load);
        if (load > 0.5)
            log_warn("the load of this machine is %.1f before the measurement of %d thread%s: times and ratios are noisy", load, threads,
                     threads == 1 ? "" : "s");
    }
    str_free(&text);
}

static int bench_start(struct bench *b, const char *what, struct err *e)
{
    TRY(cli_open(&b->rt, &b->c, NULL, e));
    jw_init(&b->w, &b->text, true);
    jw_obj(&b->w);
    jw_kstr(&b->w, "bench", what);
    jw_kstr(&b->w, "device", b->rt.be->desc);
    if (!b->c.json)
        printf("%s\n", b->rt.be->desc);
    warn_if_busy(b);
    return 0;
}

static void bench_end(struct bench *b, int rc)
{
    jw_end_obj(&b->w);
    str_putc(&b->text, '\n');
    if (b->c.json && rc == 0)
        print_str(&b->text);
    str_free(&b->text);
    bench_blas_close(&b->blas);
    cli_close(&b->rt);
}

/* ---- operators ---- */

static void time_text(char dst[24], double s)
{
    if (s >= 1)
        snprintf(dst, 24, "%.3f s", s);
    else if (s >= 1e-3)
        snprintf(dst, 24, "%.3f ms", 1e3 * s);
    else
        snprintf(dst, 24, "%.2f us", 1e6 * s);
}

static void op_head(const struct bench *b)
{
    if (b->c.json)
        return;
    printf("%-13s %-46s %11s %9s %8s %9s %9s%s\n", "op", "shape", "time", "GFLOP/s", "GB/s", "roofline", "error",
           b->blas.lib ? "    OpenBLAS  ratio  best" : "");
}

static void op_row(void *ctx, const struct bench_row *r)
{
    struct bench *b = ctx;
    double ratio = r->blas_s / r->time_s; /* above 1: this program is faster */
    if (finite_f64(ratio))
        b->ratio_min = MIN(b->ratio_min, ratio);
    jw_obj(&b->w);
    jw_kstr(&b->w, "op", r->op);
    jw_kstr(&b->w, "shape", r->shape);
    jw_ki64(&b->w, "reps", r->reps);
    jw_kf64(&b->w, "time_s", r->time_s);
    jw_kf64(&b->w, "best_s", r->best_s);
    jw_kf64(&b->w, "gflops", r->gflops);
    jw_kf64(&b->w, "gbs", r->gbs);
    kopt(&b->w, "roofline", r->share);
    kopt(&b->w, "error", r->err);
    kopt(&b->w, "openblas_s", r->blas_s);
    kopt(&b->w, "openblas_best_s", r->blas_best_s);
    kopt(&b->w, "openblas_ratio", ratio);
    kopt(&b->w, "openblas_ratio_best", r->blas_best_s / r->best_s);
    jw_end_obj(&b->w);
    if (b->c.json)
        return;
    char t[24], blas[24], share[16] = "-", err[16] = "-";
    time_text(t, r->time_s);
    if (finite_f64(r->share))
        snprintf(share, sizeof share, "%.1f %%", 100 * r->share);
    if (!isnan(r->err))
        snprintf(err, sizeof err, "%.1e", r->err);
    printf("%-13s %-46s %11s %9.2f %8.2f %9s %9s", r->op, r->shape, t, r->gflops, r->gbs, share, err);
    if (finite_f64(r->blas_s)) {
        time_text(blas, r->blas_s);
        printf(" %11s %6.2f %5.2f", blas, ratio, r->blas_best_s / r->best_s);
    }
    printf("\n");
    fflush(stdout);
}

static int measure_peak(struct bench *b, struct err *e)
{
    TRY(bench_peak_measure(b->rt.be, &b->peak, e));
    jw_kf64(&b->w, "peak_gflops", b->peak.gflops);
    jw_kf64(&b->w, "peak_gbs", b->peak.gbs);
    if (!b->c.json && b->peak.gflops > 0)
        printf("peak %.1f GFLOP/s, copy %.1f GB/s\n", b->peak.gflops, b->peak.gbs);
    return 0;
}

static void open_blas(struct bench *b)
{
    bench_blas_open(&b->blas, b->rt.pool ? pool_threads(b->rt.pool) : 1);
    jw_kstr(&b->w, "openblas", b->blas.lib ? b->blas.core : b->blas.why);
    if (!b->c.json && b->blas.lib)
        printf("OpenBLAS %s, %d threads; ratio = its time / ours, by medians and by best times\n", b->blas.core, b->blas.threads);
    else if (!b->c.json)
        printf("%s\n", b->blas.why);
}

static int bench_cmd_op(int argc, char **argv, struct err *e)
{
    struct bench b = BENCH_INIT;
    struct bench_opts o = {0};
    const char *compare = NULL;
    const struct opt opts[] = {{.name = "op", .type = OPT_STR, .dst = &o.op, .arg = "NAME", .help = "this operator, else all",
                                .group = "Operator"}, {.name = "shape", .type = OPT_STR, .dst = &o.shape, .arg = "K=V,..",
                                                       .help = "this shape, e.g. m=512,n=1536,k=576", .group = "Operator"},
                               {.name = "compare", .type = OPT_STR, .dst = &compare, .arg = "openblas", .words = compare_words,
                                .help = "beside the matrix products", .group = "Operator"}, {.name = "seconds", .type = OPT_F64,
                                   .dst = &o.seconds, .arg = "S", .lo = 0, .hi = 3600, .help = "for each row, 0 = 0.3",
                                   .group = "Operator"}, COMMON_OPTS(&b.c)};
    const struct cmd_spec spec = {.synopsis = "dashlab bench op [--op NAME [--shape K=V,..]] [OPTIONS]",
                                  .about = "Time of single operators (median), FLOPs and bytes over it, share of the measured roofline, "
                                  "error against the double reference.",
                                  .examples = "  dashlab bench op --op gemm --compare openblas\n  dashlab bench op --op gdn --shape "
                                  "lens=512,h=9,k=64,v=64", .opts = opts, .n_opts = ARRAY_LEN(opts)};
    size_t n;
    bool done;
    TRY(cli_parse(&spec, &b.c, argc, argv, NULL, &n, &done, e));
    if (done)
        return 0;
    o.seed = (uint64_t)b.c.seed;
    TRY(bench_start(&b, "op", e));
    int rc = measure_peak(&b, e);
    if (rc == 0 && compare)
        open_blas(&b);
    if (rc == 0) {
        op_head(&b);
        jw_key(&b.w, "rows");
        jw_arr(&b.w);
        rc = bench_op(b.rt.be, &o, &b.peak, &b.blas, op_row, &b, e);
        jw_end_arr(&b.w);
    }
    bench_end(&b, rc);
    return rc;
}

/* ---- steps and prefill ---- */

static const char *gemm_shape(const struct bench *b)
{
    return be_is_host(b->rt.be) ? GEMM_SHAPE : GEMM_SHAPE_DEVICE;
}

static void gemm_rate(void *ctx, const struct bench_row *r)
{
    struct bench *b = ctx;
    b->gemm = MAX(b->gemm, r->gflops);
}

/* The rate of the product, before and after what is measured against it: a clock or a neighbour that changes meanwhile shows as the
 * higher bar. */
static int measure_gemm(struct bench *b, struct err *e)
{
    struct bench_opts o = {.op = "gemm", .shape = gemm_shape(b), .seconds = 0.5, .no_check = true, .seed = (uint64_t)b->c.seed};
    return bench_op(b->rt.be, &o, NULL, NULL, gemm_rate, b, e);
}

static double run_share(const struct bench *b, const struct bench_run *r)
{
    return 1e-9 * r->flops / r->time_s / b->gemm;
}

/* Ops by time, the longest first. */
static void run_parts(struct bench *b, const struct bench_run *r)
{
    bool shown[OP_COUNT] = {false};
    double total = 0;
    for (int i = 0; i < OP_COUNT; i++)
        total += r->part[i].time_s;
    jw_key(&b->w, "ops");
    jw_arr(&b->w);
    for (int rank = 0; rank < OP_COUNT; rank++) {
        int top = -1;
        for (int i = 0; i < OP_COUNT; i++)
            if (!shown[i] && r->part[i].calls && (top < 0 || r->part[i].time_s > r->part[top].time_s))
                top = i;
        if (top < 0)
            break;
        const struct bench_part *p = &r->part[top];
        double rate = 1e-9 * p->flops / p->time_s;
        shown[top] = true;
        jw_obj(&b->w);
        jw_kstr(&b->w, "op", op_names[top]);
        jw_ki64(&b->w, "calls", p->calls);
        jw_kf64(&b->w, "time_s", p->time_s);
        kopt(&b->w, "gflops", rate);
        jw_end_obj(&b->w);
        if (!b->c.json && p->time_s > 0.005 * total)
            printf("    %-14s %6" PRId64 " calls %9.2f ms %5.1f %% %9.2f GFLOP/s\n", op_names[top], p->calls, 1e3 * p->time_s,
                   100 * p->time_s / total, rate);
    }
    jw_end_arr(&b->w);
}

static void print_run(struct bench *b, const char *key, const char *title, const struct bench_run *r)
{
    double rate = 1e-9 * r->flops / r->time_s;
    jw_key(&b->w, key);
    jw_obj(&b->w);
    jw_kf64(&b->w, "time_s", r->time_s);
    jw_kf64(&b->w, "best_s", r->best_s);
    jw_kf64(&b->w, "tokens", r->tokens);
    jw_kf64(&b->w, "tokens_per_s", r->tokens / r->time_s);
    jw_kf64(&b->w, "flops", r->flops);
    jw_kf64(&b->w, "gflops", rate);
    jw_kf64(&b->w, "gemm_gflops", b->gemm);
    jw_kf64(&b->w, "share_of_gemm", run_share(b, r));
    jw_kf64(&b->w, "peak_bytes", r->peak_bytes);
    kopt(&b->w, "value", r->value);
    if (!b->c.json)
        printf("%s: %.1f ms (best of %d %.1f), %.0f tokens/s, %.2f GFLOP counted, %.1f GFLOP/s = %.1f %% of the product's %.1f (%s), %.0f "
               "MiB, value %.6g\n", title, 1e3 * r->time_s, r->reps, 1e3 * r->best_s, r->tokens / r->time_s, 1e-9 * r->flops, rate,
               100 * run_share(b, r), b->gemm, gemm_shape(b), r->peak_bytes / 1048576, r->value);
    run_parts(b, r);
    jw_end_obj(&b->w);
    fflush(stdout);
}

static int open_model(struct model **m, struct backend *be, const char *path, uint64_t seed, struct err *e)
{
    char bundled[1024];
    if (!path)
        TRY(cli_bundled(bundled, "experiments/tiny/teacher", e));
    return infer_model(m, be, path ? path : bundled, seed, e);
}

static int do_step(struct bench *b, const char *path, const struct bench_step_opts *o, double *share, struct err *e)
{
    struct model *m;
    struct bench_run r;
    char title[96];
    TRY(open_model(&m, b->rt.be, path, (uint64_t)b->c.seed, e));
    int rc = measure_gemm(b, e) || bench_step(m, o, &r, e) || measure_gemm(b, e) ? -1 : 0;
    model_close(m);
    TRY(rc);
    snprintf(title, sizeof title, "step of stage %d, %" PRId64 " x %" PRId64 " tokens", o->stage, o->rows, o->seq);
    print_run(b, "step", title, &r);
    *share = run_share(b, &r);
    return 0;
}

static int do_prefill(struct bench *b, const char *path, int64_t rows, double *share, struct err *e)
{
    struct model *m;
    struct bench_run r;
    char title[96];
    TRY(open_model(&m, b->rt.be, path, (uint64_t)b->c.seed, e));
    int rc = measure_gemm(b, e) || bench_prefill(m, rows, (uint64_t)b->c.seed, &r, e) || measure_gemm(b, e) ? -1 : 0;
    model_close(m);
    TRY(rc);
    snprintf(title, sizeof title, "prefill of %" PRId64 " tokens", rows);
    print_run(b, "prefill", title, &r);
    *share = run_share(b, &r);
    return 0;
}

static int bench_cmd_step(int argc, char **argv, struct err *e)
{
    struct bench b = BENCH_INIT;
    const char *model = NULL;
    int64_t stage = 3, rows = 8, seq = 1024, window = 0;
    bool teacher = false;
    double share;
    const struct opt opts[] = {{.name = "model", .type = OPT_STR, .dst = &model, .arg = "PATH|SHAPE",
                                .help = "the teacher, or a shape with random weights (qwen2.5-3b); without it the bundled tiny one",
                                .group = "Step"}, {.name = "stage", .type = OPT_I64, .dst = &stage, .arg = "1|2|3", .lo = 1, .hi = 3,
                                                   .help = "align, search, distill", .group = "Step"},
                               {.name = "rows", .type = OPT_I64, .dst = &rows, .arg = "N", .lo = 1, .hi = 64,
                                .help = "sequences in the step", .group = "Step"}, {.name = "seq", .type = OPT_I64, .dst = &seq, .arg = "N",
                                   .lo = 2, .hi = 1 << 20, .help = "their length", .group = "Step"},
                               {.name = "window", .type = OPT_I64, .dst = &window, .arg = "N", .lo = 0, .hi = 1 << 20,
                                .help = "stage 2: three operators, with this window; 0 = two", .group = "Step"},
                               {.name = "teacher", .type = OPT_BOOL, .dst = &teacher,
                                .help = "stages 2 and 3: the teacher runs in the step, instead of a cache of its hidden rows",
                                .group = "Step"}, COMMON_OPTS(&b.c)};
    const struct cmd_spec spec = {.synopsis = "dashlab bench step [--model PATH] [--stage 1|2|3] [OPTIONS]",
                                  .about = "One training step on random ids: time (median of 5, on a GPU of 20), tokens/s, counted FLOPs "
                                  "over time and their share of the matrix product's rate, time by operator.",
                                  .examples = "  dashlab bench step --stage 3\n  dashlab bench step --device cuda --dtype bf16 --model "
                                  "qwen2.5-3b --stage 2 --rows 2 --seq 4096 --teacher", .opts = opts, .n_opts = ARRAY_LEN(opts)};
    size_t n;
    bool done;
    TRY(cli_parse(&spec, &b.c, argc, argv, NULL, &n, &done, e));
    if (done)
        return 0;
    if (rows * seq > 1 << 24)
        return ERR(e, E_USAGE, "--rows %" PRId64 " times --seq %" PRId64 " is above 16777216 tokens", rows, seq);
    struct bench_step_opts o = {.stage = (int)stage, .rows = rows, .seq = seq, .seed = (uint64_t)b.c.seed, .window = window,
                                .teacher = teacher};
    TRY(bench_start(&b, "step", e));
    int rc = do_step(&b, model, &o, &share, e);
    bench_end(&b, rc);
    return rc;
}

static int bench_cmd_prefill(int argc, char **argv, struct err *e)
{
    struct bench b = BENCH_INIT;
    const char *model = NULL;
    int64_t rows = 512;
    double share;
    const struct opt opts[] = {{.name = "model", .type = OPT_STR, .dst = &model, .arg = "PATH",
                                .help = "folder or .gguf; without it the bundled tiny teacher", .group = "Prefill"},
                               {.name = "rows", .type = OPT_I64, .dst = &rows, .arg = "N", .lo = 1, .hi = 1 << 20,
                                .help = "tokens of the prompt", .group = "Prefill"}, COMMON_OPTS(&b.c)};
    const struct cmd_spec spec = {.synopsis = "dashlab bench prefill [--model PATH] [--rows N] [OPTIONS]",
                                  .about = "Forward over a prompt of random ids and the logits of its last token: counted FLOPs over "
                                  "time, share of the matrix product's rate.",
                                  .examples = "  dashlab bench prefill --model SmolLM2-135M-Instruct.Q4_1.gguf --rows 512", .opts = opts,
                                  .n_opts = ARRAY_LEN(opts)};
    size_t n;
    bool done;
    TRY(cli_parse(&spec, &b.c, argc, argv, NULL, &n, &done, e));
    if (done)
        return 0;
    TRY(bench_start(&b, "prefill", e));
    int rc = do_prefill(&b, model, rows, &share, e);
    bench_end(&b, rc);
    return rc;
}

/* ---- summary ---- */

/* The goals of the CPU backend. */
#define GOAL_RATIO 0.9
#define GOAL_PREFILL 0.70
#define GOAL_STEP 0.45
#define SMOLLM2 ".cache/dashlab/SmolLM2-135M-Instruct.Q4_1.gguf" /* where tests/fetch_smollm2.sh leaves it */

static void goal(struct bench *b, const char *key, const char *words, double got, double want)
{
    bool met = got >= want, known = finite_f64(got);
    jw_key(&b->w, key);
    jw_obj(&b->w);
    kopt(&b->w, "got", got);
    jw_kf64(&b->w, "goal", want);
    if (known)
        jw_kbool(&b->w, "met", met);
    jw_end_obj(&b->w);
    if (!b->c.json && known)
        printf("%-34s %5.2f  goal %.2f  %s\n", words, got, want, met ? "met" : "NOT MET");
    else if (!b->c.json)
        printf("%-34s     -  goal %.2f  not measured\n", words, want);
}

static int summary_gemm(struct bench *b, struct err *e)
{
    static const char *const shape[] = {"m=4096,n=384,k=128", "m=4096,n=128,k=384", GEMM_SHAPE, "m=512,n=49152,k=576"};
    int rc = 0;
    open_blas(b);
    op_head(b);
    jw_key(&b->w, "gemm");
    jw_arr(&b->w);
    for (size_t i = 0; rc == 0 && i < ARRAY_LEN(shape); i++) {
        struct bench_opts o = {.op = "gemm", .shape = shape[i], .seconds = 1, .seed = (uint64_t)b->c.seed};
        rc = bench_op(b->rt.be, &o, &b->peak, &b->blas, op_row, b, e);
    }
    jw_end_arr(&b->w);
    return rc;
}

/* OpenBLAS comes last: its threads are awake for a while after a call. */
static int bench_summary(int argc, char **argv, struct err *e)
{
    struct bench b = BENCH_INIT;
    char path[1024];
    const char *model = NULL, *home = getenv("HOME");
    double step = NAN, prefill = NAN;
    const struct opt opts[] = {{.name = "model", .type = OPT_STR, .dst = &model, .arg = "PATH",
                                .help = "for prefill; without it SmolLM2 in ~/.cache/dashlab", .group = "Bench"}, COMMON_OPTS(&b.c)};
    const struct cmd_spec spec = {.synopsis = "dashlab bench [op|step|prefill|infer|ruler] [OPTIONS]",
                                  .about = "Without a sub command: the speeds that goals are set for: a tiny Stage-3 step, prefill of 512 "
                                  "tokens, four matrix products beside OpenBLAS.",
                                  .examples = "  dashlab bench\n  dashlab bench op --op gemm --compare openblas\n  dashlab bench step "
                                  "--stage 3\n  dashlab bench prefill --model SmolLM2.gguf", .opts = opts, .n_opts = ARRAY_LEN(opts)};
    size_t n;
    bool done;
    TRY(cli_parse(&spec, &b.c, argc, argv, NULL, &n, &done, e));
    if (done)
        return 0;
    if (!model && home && strlen(home) < 512 && file_exists(path_join(path, home, SMOLLM2)))
        model = path;
    struct bench_step_opts o = {.stage = 3, .rows = 8, .seq = 1024, .seed = (uint64_t)b.c.seed};
    TRY(bench_start(&b, "summary", e));
    int rc = measure_peak(&b, e);
    if (rc == 0)
        rc = do_step(&b, NULL, &o, &step, e);
    if (rc == 0 && model)
        rc = do_prefill(&b, model, 512, &prefill, e);
    else if (rc == 0 && !b.c.json)
        printf("prefill: no model (tests/fetch_smollm2.sh, or --model PATH)\n");
    if (rc == 0)
        rc = summary_gemm(&b, e);
    if (rc == 0) {
        goal(&b, "goal_gemm", "gemm / OpenBLAS, worst shape", b.ratio_min, GOAL_RATIO);
        goal(&b, "goal_prefill", "prefill / gemm rate", prefill, GOAL_PREFILL);
        goal(&b, "goal_step", "tiny Stage-3 step / gemm rate", step, GOAL_STEP);
    }
    bench_end(&b, rc);
    return rc;
}

int cmd_bench(int argc, char **argv, struct err *e)
{
    static const struct cmd subs[] = {{"op", "single operators, beside OpenBLAS if asked", bench_cmd_op},
                                      {"step", "one training step of stage 1, 2 or 3", bench_cmd_step},
                                      {"prefill", "forward over a prompt", bench_cmd_prefill},
                                      {"infer", "prefill and decoding over contexts, with memory", bench_cmd_infer},
                                      {"ruler", "making of RULER's samples, by part", bench_cmd_ruler}};
    if (argc < 1 || argv[0][0] == '-') /* no sub command: options or nothing */
        return bench_summary(argc, argv, e);
    return cli_sub("bench", subs, ARRAY_LEN(subs), argc, argv, e);
}
