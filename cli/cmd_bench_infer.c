/* bench infer: prefill and decoding over contexts and batch sizes. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/bench_infer.h"
#include "cli/cli.h"
#include "core/jwrite.h"
#include "dash/selection.h"

struct infer_cmd {
    struct common c;
    struct cli_rt rt;
    const char *model, *layers, *context, *batch, *piece, *limit;
    int64_t decode, warmup, reps, window;
    int64_t contexts[64], batches[64], piece_tok; /* the lists, read; 0: all prompts in one forward */
    size_t n_contexts, n_batches;
    struct str text;
    struct jw w;
};

static int open_base(struct model **m, struct infer_cmd *b, struct err *e)
{
    char bundled[1024];
    if (!b->model)
        TRY(cli_bundled(bundled, "experiments/tiny/teacher", e));
    if (infer_model(m, b->rt.be, b->model ? b->model : bundled, (uint64_t)b->c.seed, e) == 0)
        return 0;
    struct str names = STR_INIT;
    for (const char *const *n = infer_shape_names(); *n; n++)
        str_printf(&names, " %s", *n);
    err_wrap(e, "--model takes a folder, a .gguf file or a shape with random weights (%s )", str_c(&names));
    str_free(&names);
    return -1;
}

/* The model to measure: the base itself, or a hybrid of it; the base lives as long. */
static int open_hybrid(struct model **out, struct model *base, struct linset **lin, struct infer_cmd *b, struct err *e)
{
    enum mixer_kind kind[MAX_LAYERS];
    unsigned ops[MAX_LAYERS];
    struct linset_opts lo = LINSET_OPTS;
    struct assemble_opts ao = {.ops = ops, .window = b->window};
    TRY(layers_parse(b->layers, (int)base->cfg.L, kind, e));
    TRY(linset_make(lin, base, &lo, e));
    for (int64_t l = 0; l < base->cfg.L; l++)
        ops[l] = MIX_BIT(kind[l]);
    return model_assemble(out, base, *lin, &ao, e);
}

static void time_json(struct jw *w, const char *key, const struct infer_time *t)
{
    jw_key(w, key);
    jw_obj(w);
    jw_kf64(w, "median_s", t->median);
    jw_kf64(w, "quartile_lo_s", t->lo);
    jw_kf64(w, "quartile_hi_s", t->hi);
    jw_end_obj(w);
}

static void print_row(struct infer_cmd *b, const struct infer_opts *o, const struct infer_run *r)
{
    const double mib = 1048576;
    jw_obj(&b->w);
    jw_ki64(&b->w, "context", o->context);
    jw_ki64(&b->w, "batch", o->batch);
    jw_kbool(&b->w, "fits", r->fits);
    jw_kf64(&b->w, "predicted_bytes", r->need_bytes);
    jw_kf64(&b->w, "limit_bytes", r->limit_bytes);
    jw_kf64(&b->w, "cache_bytes", r->cache_bytes);
    if (r->fits) {
        time_json(&b->w, "prefill", &r->prefill);
        time_json(&b->w, "decode_token", &r->step);
        jw_kf64(&b->w, "prefill_flops", r->prefill_flops);
        jw_kf64(&b->w, "prefill_peak_bytes", r->prefill_peak);
        jw_kf64(&b->w, "decode_peak_bytes", r->decode_peak);
    }
    jw_end_obj(&b->w);
    if (b->c.json)
        return;
    if (!r->fits)
        printf("%8" PRId64 " %6d  out of memory: predicted %.2f GiB, limit %.2f GiB\n", o->context, (int)o->batch,
               r->need_bytes / 1073741824, r->limit_bytes / 1073741824);
    else
        printf("%8" PRId64 " %6d %10.2f [%.2f, %.2f] %9.3f [%.3f, %.3f] %10.1f %10.1f %10.1f %10.1f\n", o->context, (int)o->batch,
               1e3 * r->prefill.median, 1e3 * r->prefill.lo, 1e3 * r->prefill.hi, 1e3 * r->step.median, 1e3 * r->step.lo, 1e3 * r->step.hi,
               1e-9 * r->prefill_flops / r->prefill.median, r->cache_bytes / mib, r->prefill_peak / mib, r->decode_peak / mib);
    fflush(stdout);
}

/* "4096,8192": numbers from 1 to `most`. */
static int read_list(const char *option, const char *text, int64_t most, int64_t *out, size_t cap, size_t *n, struct err *e)
{
    *n = 0;
    for (const char *s = text;;) {
        char *end;
        long long v = strtoll(s, &end, 10);
        if (end == s || (*end && *end != ',') || v < 1 || v > most || *n == cap)
            return ERR(e, E_USAGE, "--%s '%s': a list of at most %zu numbers from 1 to %" PRId64 ", such as 4,16", option, text, cap, most);
        out[(*n)++] = v;
        if (!*end)
            return 0;
        s = end + 1;
    }
}

static int read_lists(struct infer_cmd *b, struct err *e)
{
    enum { MAX_CONTEXT = 1 << 24, MAX_BATCH = 4096 };
    size_t one;
    TRY(read_list("context", b->context, MAX_CONTEXT, b->contexts, ARRAY_LEN(b->contexts), &b->n_contexts, e));
    TRY(read_list("batch", b->batch, MAX_BATCH, b->batches, ARRAY_LEN(b->batches), &b->n_batches, e));
    if (!strcmp(b->piece, "all"))
        return 0;
    if (read_list("piece", b->piece, MAX_CONTEXT, &b->piece_tok, 1, &one, e) != 0)
        return ERR(e, E_USAGE, "--piece '%s': a number of tokens from 1 to %d, or all", b->piece, (int)MAX_CONTEXT);
    return 0;
}

static int each_row(struct infer_cmd *b, struct model *m, double limit, struct err *e)
{
    if (!b->c.json)
        printf("%s%s%s, %" PRId64 " parameters, %s\n%8s %6s %10s %s %17s %s %16s %10s %10s %10s\n", b->model ? b->model : "tiny teacher",
               b->layers ? ", hybrid " : "", b->layers ? b->layers : "", mcfg_params(&m->cfg), b->rt.be->desc, "context", "batch",
               "prefill ms", "[quartiles]", "decode ms", "[quartiles]", "GFLOP/s", "cache MiB", "peak pre", "peak dec");
    for (size_t i = 0; i < b->n_contexts * b->n_batches; i++) {
        struct infer_opts o = {.context = b->contexts[i / b->n_batches], .decode = b->decode,
                               .batch = (int32_t)b->batches[i % b->n_batches], .warmup = (int)b->warmup, .reps = (int)b->reps,
                               .piece = b->piece_tok, .limit_bytes = limit, .seed = (uint64_t)b->c.seed};
        struct infer_run r;
        TRY(bench_infer(m, &o, &r, e));
        print_row(b, &o, &r);
    }
    return 0;
}

int bench_cmd_infer(int argc, char **argv, struct err *e)
{
    struct infer_cmd b = {.c = COMMON_INIT, .text = STR_INIT, .piece = "8192", .decode = -1, .warmup = -1, .reps = -1, .window = 128};
    const struct opt opts[] = {
        {.name = "model", .type = OPT_STR, .dst = &b.model, .arg = "PATH|SHAPE",
         .help = "folder, .gguf, or a shape with random weights (qwen2.5-3b); without it the bundled tiny teacher", .group = "Inference"},
        {.name = "layers", .type = OPT_STR, .dst = &b.layers, .arg = "SPEC",
         .help = "a hybrid of it: \"full:0,5 window:2\", the rest linear mixers as Stage 1 starts them", .group = "Inference"},
        {.name = "window", .type = OPT_I64, .dst = &b.window, .arg = "N", .lo = 1, .hi = 1 << 20, .help = "tokens of Window layers",
         .group = "Inference"},
        {.name = "context", .type = OPT_STR, .dst = &b.context, .arg = "N,..",
         .help = "prompt lengths (cpu 256,512,1024; cuda 4096 to 65536)", .group = "Inference"},
        {.name = "batch", .type = OPT_STR, .dst = &b.batch, .arg = "N,..", .help = "sequences, a row for each length (cpu 4, cuda 16)",
         .group = "Inference"},
        {.name = "piece", .type = OPT_STR, .dst = &b.piece, .arg = "N|all",
         .help = "most prompt tokens in one forward, one sequence after another; all: the prompts of the whole batch in one",
         .group = "Inference"},
        {.name = "decode", .type = OPT_I64, .dst = &b.decode, .arg = "N", .lo = 1, .hi = 1 << 20,
         .help = "tokens decoded (cpu 32, cuda 256)", .group = "Inference"},
        {.name = "warmup", .type = OPT_I64, .dst = &b.warmup, .arg = "N", .lo = 0, .hi = 64, .help = "untimed rounds (cpu 1, cuda 3)",
         .group = "Inference"},
        {.name = "reps", .type = OPT_I64, .dst = &b.reps, .arg = "N", .lo = 1, .hi = INFER_MAX_REPS,
         .help = "timed rounds (cpu 5, cuda 10)", .group = "Inference"},
        {.name = "memory-limit", .type = OPT_STR, .dst = &b.limit, .arg = "SIZE",
         .help = "lengths predicted to need more are shown as out of memory (95.6GiB; never above what there is)", .group = "Inference"},
        COMMON_OPTS(&b.c)};
    const struct cmd_spec spec = {.synopsis = "dashlab bench infer [--model PATH|SHAPE] [--layers SPEC] [--context N,..] [--batch N,..] "
                                  "[OPTIONS]", .about = "Prefill latency, decoding time a token, cache and peak memory over context "
                                  "lengths and batch sizes; medians with quartiles. A GPU computes in bf16 unless --dtype says f32.",
                                  
                                  .examples = "  dashlab bench infer --layers full:2,9,11\n  dashlab bench infer --model qwen2.5-3b "
                                  "--device cuda --piece all --memory-limit 95.6GiB", .opts = opts, .n_opts = ARRAY_LEN(opts)};
    struct model *base = NULL, *hybrid = NULL;
    struct linset *lin = NULL;
    double limit = 0;
    size_t n;
    bool done;
    TRY(cli_parse(&spec, &b.c, argc, argv, NULL, &n, &done, e));
    if (done)
        return 0;
    if (b.limit && !cli_parse_bytes(b.limit, &limit))
        return ERR(e, E_USAGE, "--memory-limit '%s' is no size (95.6GiB, 512MiB, bytes)", b.limit);
    b.c.gpu_dtype = "bf16"; /* what the paper measured in */
    TRY(cli_open(&b.rt, &b.c, NULL, e));
    bool gpu = !strcmp(b.rt.be->ops->name, "cuda");
    b.batch = b.batch ? b.batch : gpu ? "16" : "4";
    b.decode = b.decode > 0 ? b.decode : gpu ? 256 : 32;
    b.warmup = b.warmup >= 0 ? b.warmup : gpu ? 3 : 1;
    b.reps = b.reps > 0 ? b.reps : gpu ? 10 : 5;
    b.context = b.context ? b.context : gpu ? "4096,8192,16384,32768,65536" : "256,512,1024";
    jw_init(&b.w, &b.text, true);
    jw_obj(&b.w);
    jw_kstr(&b.w, "bench", "infer");
    jw_kstr(&b.w, "device", b.rt.be->desc);
    jw_kstr(&b.w, "precision", b.rt.be->act == DT_BF16 ? "bfloat16" : "float32");
    jw_kstr(&b.w, "piece", b.piece);
    jw_ki64(&b.w, "decode_tokens", b.decode);
    jw_key(&b.w, "rows");
    jw_arr(&b.w);
    int rc = read_lists(&b, e) || open_base(&base, &b, e) || (b.layers && open_hybrid(&hybrid, base, &lin, &b, e)) ||
        each_row(&b, hybrid ? hybrid : base, limit, e) ? -1 : 0;
    jw_end_arr(&b.w);
    jw_end_obj(&b.w);
    if (rc == 0 && b.c.json)
        printf("%s\n", str_c(&b.text));
    str_free(&b.text);
    if (hybrid)
        model_close(hybrid);
    if (lin)
        linset_close(lin);
    if (base)
        model_close(base);
    cli_close(&b.rt);
    return rc;
}
