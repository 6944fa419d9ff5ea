/* dashlab ppl */
#include "cli/cli.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "cli/ids.h"
#include "core/jwrite.h"
#include "core/prog.h"
#include "lmeval/lmeval.h"
#include "model/ppl.h"

static const char *const rule_words[] = {"nonoverlap", "stride", "hf", "llamacpp", "lm-eval", NULL};

static void progress(void *ctx, int64_t done, int64_t total, double nll, int64_t tokens)
{
    char extra[64];
    ((struct prog *)ctx)->total = total;
    snprintf(extra, sizeof extra, "nll %.4f", tokens ? nll / (double)tokens : 0);
    prog_update(ctx, done, extra);
}

static void print_result(const struct ppl_result *r, const struct ppl_opts *o, int64_t used, const char *rule, bool json)
{
    if (!json) {
        printf("rule %s, window %" PRId64, rule, o->window);
        if (o->rule == PPL_STRIDE || o->rule == PPL_HF)
            printf(", stride %" PRId64, o->stride);
        printf("\ntokens read    %" PRId64 "\ntokens scored  %" PRId64 "\nnll            %.6f nats (%.8f a token)\nperplexity     %.6f\n",
               used, r->tokens, r->nll, r->nll / (double)r->tokens, r->ppl);
        return;
    }
    struct str s = STR_INIT;
    struct jw w;
    jw_init(&w, &s, true);
    jw_obj(&w);
    jw_kstr(&w, "rule", rule);
    jw_ki64(&w, "window", o->window);
    if (o->rule == PPL_STRIDE || o->rule == PPL_HF)
        jw_ki64(&w, "stride", o->stride);
    jw_ki64(&w, "tokens_read", used);
    jw_ki64(&w, "windows", r->windows);
    jw_ki64(&w, "tokens", r->tokens);
    jw_kf64(&w, "nll", r->nll);
    jw_kf64(&w, "ppl", r->ppl);
    jw_end_obj(&w);
    str_putc(&s, '\n');
    print_str(&s);
    str_free(&s);
}

struct args {
    const char *model, *file, *ids, *tokenizer, *pretok, *rule;
    int64_t max_tokens, max_pages;
};

/* ---- lm-eval: the harness' task wikitext ---- */

static void page_progress(void *ctx, int64_t pages, const struct wikitext_result *r)
{
    char extra[64];
    snprintf(extra, sizeof extra, "nll %.4f", r->tokens ? -r->ll / (double)r->tokens : 0);
    prog_update(ctx, pages, extra);
}

static void print_wikitext(const struct wikitext_result *r, int64_t window, bool json)
{
    if (!json) {
        printf("rule lm-eval, windows of %" PRId64 "\npages %" PRId64 ", words %" PRId64 ", bytes %" PRId64 ", tokens scored "
               "%" PRId64 "\nlog-likelihood   %.6f nats\nword perplexity  %.6f\nbyte perplexity  %.6f\n"
               "bits per byte    %.6f\n", window, r->pages, r->words, r->bytes, r->tokens, r->ll, r->word_ppl, r->byte_ppl,
               r->bits_per_byte);
        return;
    }
    struct str s = STR_INIT;
    struct jw w;
    jw_init(&w, &s, true);
    jw_obj(&w);
    jw_kstr(&w, "rule", "lm-eval");
    jw_ki64(&w, "window", window);
    jw_ki64(&w, "pages", r->pages);
    jw_ki64(&w, "words", r->words);
    jw_ki64(&w, "bytes", r->bytes);
    jw_ki64(&w, "tokens", r->tokens);
    jw_kf64(&w, "nll", -r->ll);
    jw_kf64(&w, "ppl", exp(-r->ll / (double)r->tokens));
    jw_kf64(&w, "word_perplexity", r->word_ppl);
    jw_kf64(&w, "byte_perplexity", r->byte_ppl);
    jw_kf64(&w, "bits_per_byte", r->bits_per_byte);
    jw_end_obj(&w);
    str_putc(&s, '\n');
    print_str(&s);
    str_free(&s);
}

static int run_wikitext(const struct args *a, int64_t window, const struct common *c, struct err *e)
{
    struct cli_rt rt;
    struct model *m = NULL;
    struct str text = STR_INIT;
    struct wikitext_result r;
    struct prog prog;
    TRY(cli_open(&rt, c, NULL, e));
    struct model_open_opts mo = {.want_tokenizer = true, .tokenizer = a->tokenizer, .pretok = a->pretok};
    int rc = model_open(&m, rt.be, a->model, &mo, e);
    if (rc == 0 && !m->tok)
        rc = ERR(e, E_INPUT, "'%s' has no tokenizer; give --tokenizer", a->model);
    rc = rc ? rc : text_read(a->file, &text, e);
    if (rc == 0) {
        window = window ? window : m->cfg.max_pos;
        prog_start(&prog, "ppl", "pages", a->max_pages);
        rc = wikitext_perplexity(m, str_c(&text), text.len, window, a->max_pages, &prog, page_progress, &r, e);
        prog_end(&prog);
    }
    if (rc == 0)
        print_wikitext(&r, window, c->json);
    str_free(&text);
    model_close(m);
    cli_close(&rt);
    return rc;
}

static int run(const struct args *a, struct ppl_opts *o, const struct common *c, struct err *e)
{
    struct cli_rt rt;
    struct model *m = NULL;
    struct tok_ids t = {0};
    struct ppl_result r;
    struct prog prog;
    TRY(cli_open(&rt, c, NULL, e));
    struct model_open_opts mo = {.want_tokenizer = a->ids == NULL, .tokenizer = a->tokenizer, .pretok = a->pretok};
    int rc = model_open(&m, rt.be, a->model, &mo, e);
    if (rc == 0)
        rc = ids_from(m->tok, NULL, a->file, a->ids, true, &t, e);
    if (rc == 0 && a->max_tokens && (int64_t)t.n > a->max_tokens)
        t.n = (size_t)a->max_tokens;
    if (rc == 0) {
        prog_start(&prog, "ppl", "windows", 0);
        o->ctx = &prog;
        o->progress = progress;
        rc = ppl_compute(m, t.v, (int64_t)t.n, o, &r, e);
        prog_end(&prog);
    }
    if (rc == 0)
        print_result(&r, o, (int64_t)t.n, a->rule, c->json);
    tok_ids_free(&t);
    model_close(m);
    cli_close(&rt);
    return rc;
}

int cmd_ppl(int argc, char **argv, struct err *e)
{
    struct common c = COMMON_INIT;
    struct args a = {.rule = "nonoverlap"};
    struct ppl_opts o = {.window = 512, .stride = 256};
    const struct opt opts[] = {
        O_STR("model", &a.model, "PATH", "model folder or .gguf", "Model"),
        MODEL_OPTS(&a.tokenizer, &a.pretok),
        O_STR("file", &a.file, "F", "text, taken as it is (- for standard input)", "Text"),
        O_STR("ids", &a.ids, "F", "token ids in place of a text (.u16, .i32, JSON or numbers)", "Text"),
        O_INT("max-tokens", &a.max_tokens, 0, 1e15, "the first N tokens, 0 = all", "Text"),
        O_WORD("rule", &a.rule, "RULE", rule_words,
               "nonoverlap, stride, hf (the guide's weights), llamacpp, or lm-eval: word, byte and bits-per-byte perplexity of raw "
               "WikiText by page", "Rule"),
        O_INT("window", &o.window, 2, 1 << 24, "tokens of context; lm-eval: default the model's length", "Rule"),
        O_INT("max-pages", &a.max_pages, 0, 1e9, "lm-eval: the first N pages, 0 = all", "Rule"),
        O_INT("stride", &o.stride, 1, 1 << 24, "step of the stride and hf rules", "Rule"),
        O_INT("rows", &o.rows, 0, 1 << 24, "tokens computed at once, 0 = 2048", "Rule"),
        COMMON_OPTS(&c),
    };
    const struct cmd_spec spec = {.synopsis = "dashlab ppl --model PATH (--file F | --ids F) [OPTIONS]",
                                  .about = "Perplexity of a text.",
                                  .examples = "  dashlab ppl --model SmolLM2.gguf --file wiki.test.raw --max-tokens 20000 --rule stride\n",
                                  .opts = opts,
                                  .n_opts = ARRAY_LEN(opts)};
    bool done;
    size_t n_pos;
    TRY(cli_parse(&spec, &c, argc, argv, NULL, &n_pos, &done, e));
    if (done)
        return 0;
    if (!a.model)
        return ERR(e, E_USAGE, "--model is missing");
    if ((a.file != NULL) == (a.ids != NULL))
        return ERR(e, E_USAGE, "give one of --file and --ids");
    if (!strcmp(a.rule, "lm-eval")) {
        if (!a.file || a.max_tokens)
            return ERR(e, E_USAGE, "--rule lm-eval needs --file and takes --max-pages, not --ids or --max-tokens");
        return run_wikitext(&a, opt_given(opts, ARRAY_LEN(opts), argc, argv, "window") ? o.window : 0, &c, e);
    }
    for (int i = 0; rule_words[i]; i++)
        if (!strcmp(rule_words[i], a.rule))
            o.rule = (enum ppl_rule)i;
    if (o.stride > o.window && (o.rule == PPL_STRIDE || o.rule == PPL_HF))
        return ERR(e, E_USAGE, "--stride %" PRId64 " is larger than --window %" PRId64, o.stride, o.window);
    o.stride = MIN(o.stride, o.window);
    return run(&a, &o, &c, e);
}
