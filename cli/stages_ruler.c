/* Stage kinds: RULER data, packing of training rows, RULER evaluation. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli/ruler_glue.h"
#include "cli/select_plan.h"
#include "cli/stages.h"
#include "cli/stages_cost.h"
#include "core/log.h"
#include "core/rng.h"
#include "model/cache.h"
#include "model/data.h"

/* ---- ruler-gen ---- */

static const char *const flavour_words[] = {"compact", "nvidia", NULL};
static const char *const layout_words[] = {"shared", "drawn", NULL};
static const struct param_spec gen_params[] = {
    {.name = "model", .type = PT_REF, .help = "whose tokenizer counts the tokens"},
    {.name = "lengths", .type = PT_INTS, .unit = "tokens", .def = "1024", .lo = 64, .hi = 1e7,
     .help = "lengths; each gets its own block of samples, with seed, seed+1, ..."},
    {.name = "tasks", .type = PT_STRS, .def = "", .help = "tasks; default: all of the flavour"},
    {.name = "samples", .type = PT_INT, .unit = "samples", .def = "24", .lo = 1, .hi = 1e7, .help = "of each task and length"},
    {.name = "seed", .type = PT_INT, .def = "42", .lo = 0, .hi = 4294967295.0, .help = "random seed"},
    {.name = "flavour", .type = PT_WORD, .def = "compact", .words = flavour_words,
     .help = "compact: for windows below 2048 tokens, not reference RULER"},
    {.name = "essays", .type = PT_PATH, .def = "", .help = "haystack text, a file or a folder of them; default: the bundled novels"},
    {.name = "layout", .type = PT_WORD, .def = "shared", .words = layout_words, .later = true,
     .help = "place in the essay, order of cwe's and fwe's words; drawn (compact): anew for each sample, for training"},
    {.name = "wonderwords", .type = PT_STR, .def = "2.2.0", .help = "word list version"},
    {.name = "task_file", .type = PT_PATH, .def = "", .help = "your own tasks (ruler/README.md); 'tasks' then defaults to those"}};

static int gen_run(void *ctx, const struct node *n, struct run *r, struct err *e)
{
    struct env *env = ctx;
    const struct tok *tok;
    int64_t lengths[64];
    char path[1024], mp[1024], essays[1024], data[1024], task_file[1024];
    TRY(env_backend(env, e)); /* its threads */
    TRY(env_tok(env, model_path(node_path(n, "model", path), mp), &tok, e));
    TRY(cli_bundled(data, "ruler/data", e));
    struct ruler_gen_opts o = {.tokenizer_name = tok_family(tok), .tokenizer_sha256 = tok_sha256(tok), .lengths = lengths,
                               .samples = node_i64(n, "samples"), .seed = node_i64(n, "seed"), .flavour = node_str(n, "flavour"),
                               .data_dir = data, .wonderwords = node_str(n, "wonderwords"), .pool = env->rt.pool};
    o.tasks = node_has(n, "tasks") ? node_str(n, "tasks") : NULL;
    o.essays = node_has(n, "essays") ? node_path(n, "essays", essays) : NULL;
    o.drawn = !strcmp(node_str(n, "layout"), "drawn");
    o.task_file = node_has(n, "task_file") ? node_path(n, "task_file", task_file) : NULL;
    o.n_lengths = node_list_i64(n, "lengths", lengths, ARRAY_LEN(lengths));
    struct ruler_tokens tokens = {0};
    int rc = ruler_tokens_open(&tokens, tok, o.flavour, &o.counter, e);
    rc = rc ? rc : ruler_gen(&o, r->out, e);
    ruler_tokens_close(&tokens);
    TRY(rc);
    struct result res;
    result_begin(&res);
    jw_kstr(&res.w, "flavour", o.flavour);
    jw_ki64(&res.w, "samples", o.samples);
    jw_ki64(&res.w, "length", lengths[0]);
    jw_kstr(&res.w, "essays", o.essays ? "given" : "bundled public-domain novels");
    if (o.drawn)
        jw_kstr(&res.w, "layout", "drawn");
    return result_save(&res, r, e);
}

/* A task that does not exist, or an option that the flavour does not have, is said before anything runs. */
static int gen_plan(void *ctx, const struct node *n, struct stage_cost *c, struct err *e)
{
    const char *const *known = ruler_task_names();
    size_t k = 0;
    UNUSED(ctx);
    UNUSED(c);
    while (known[k])
        k++;
    if (!strcmp(node_str(n, "layout"), "drawn") && strcmp(node_str(n, "flavour"), "compact"))
        return ERR(e, E_USAGE, "stage '%s': flavour '%s' lays samples out as its reference does; layout: drawn belongs to 'compact'",
                   n->stage->id, node_str(n, "flavour"));
    if (node_has(n, "task_file")) /* tasks of the user's own: read when they are made */
        return 0;
    for (const char *s = node_str(n, "tasks"); *s; s += strcspn(s, ","), s += *s == ',') {
        char name[64];
        bool have = false;
        snprintf(name, sizeof name, "%.*s", (int)MIN(strcspn(s, ","), sizeof name - 1), s);
        for (size_t i = 0; i < k; i++)
            have = have || !strcmp(known[i], name);
        const char *near = have ? NULL : nearest_word(name, known, k);
        if (!have)
            return ERR(e, E_USAGE, "stage '%s': there is no RULER task '%s'%s%s%s", n->stage->id, name, near ? "; did you mean '" : "",
                       near ? near : "", near ? "'?" : "");
    }
    return 0;
}
const struct stage_kind kind_ruler_gen = {.name = "ruler-gen", .about = "RULER samples", .version = 1, .params = gen_params,
                                          .n_params = ARRAY_LEN(gen_params), .plan = gen_plan, .run = gen_run, .host = stage_on_host};

/* ---- pack ---- */

static const struct param_spec pack_params[] = {
    {.name = "model", .type = PT_REF, .help = "whose tokenizer"},
    {.name = "ruler", .type = PT_REFS, .def = "", .help = "ruler-gen runs: whole samples with their answers, never cut"},
    {.name = "text", .type = PT_STRS, .files = true, .def = "",
     .help = "text files or folders of them (.txt, .md, .jsonl, also .zst), concatenated and cut into rows"},
    {.name = "key", .type = PT_STR, .def = "text", .help = "JSONL: the key that holds the text"},
    {.name = "seq", .type = PT_INT, .unit = "tokens", .def = "1024", .lo = 2, .hi = 4194304, .help = "row length"},
    {.name = "text_share", .type = PT_NUM, .def = "0.12", .lo = 0, .hi = 1, .help = "share of rows that are text, when both are given"},
    {.name = "text_rows", .type = PT_INT, .unit = "rows", .def = "0", .lo = 0, .hi = 1e9,
     .help = "rows of text when only text is given; 0 = all"},
    {.name = "repeat_text", .type = PT_BOOL, .def = "",
     .help = "text that is too short for its share of rows is used again, cut at other places"},
    {.name = "seed", .type = PT_INT, .def = "0", .lo = 0, .hi = 4294967295.0, .help = "order of samples and rows"}};

struct row {
    int32_t *ids;
    uint8_t *mask;
    int64_t n;
    bool ruler;
};
struct packer {
    const struct tok *tok;
    int64_t seq;
    struct row *rows;     /* ruler: open and closed rows; then text rows */
    size_t n, cap;
    struct row *samples;
    size_t n_samples, cap_samples;
    struct tok_ids text;
    int64_t dropped;
    const char *file; /* text that is being read, for messages */
};

static int push(struct row **v, size_t *n, size_t *cap, const int32_t *ids, const uint8_t *mask, int64_t len, int64_t room, bool ruler,
                struct err *e)
{
    if (*n == *cap) {
        size_t want = *cap ? 2 * *cap : 256;
        struct row *grown = realloc(*v, want * sizeof **v);
        if (!grown)
            return err_nomem(e, want * sizeof **v, "rows");
        *v = grown;
        *cap = want;
    }
    struct row r = {.ids = calloc((size_t)room, sizeof *r.ids), .mask = calloc((size_t)room, 1), .n = len, .ruler = ruler};
    if (!r.ids || !r.mask)
        return err_nomem(e, (size_t)room * 5, "a row");
    if (len) {
        memcpy(r.ids, ids, (size_t)len * sizeof *ids);
        memcpy(r.mask, mask, (size_t)len);
    }
    (*v)[(*n)++] = r;
    return 0;
}

static int take_sample(void *ctx, const struct ruler_sample *s, struct err *e)
{
    struct packer *p = ctx;
    struct tok_ids prompt = {0}, full = {0};
    struct str text = STR_INIT;
    str_printf(&text, "%s%s", s->prompt, s->answer);
    int rc = tok_encode(p->tok, s->prompt, strlen(s->prompt), false, &prompt, e) || tok_encode(p->tok, str_c(&text), text.len, false, &full,
        e);
    size_t same = 0;
    while (same < prompt.n && same < full.n && prompt.v[same] == full.v[same])
        same++;
    uint8_t *mask = rc == 0 ? malloc(full.n + 1) : NULL;
    if (rc == 0 && !mask)
        rc = err_nomem(e, full.n, "a mask");
    for (size_t i = 0; rc == 0 && i < full.n; i++)
        mask[i] = (uint8_t)(TOK_PRESENT | (i >= same ? TOK_ANSWER : 0));
    if (rc == 0 && tok_eos(p->tok) >= 0) {
        rc = tok_ids_add(&full, tok_eos(p->tok), e);
        mask[full.n - 1] = TOK_PRESENT;
    }
    if (rc == 0 && (int64_t)full.n > p->seq)
        p->dropped++;
    else if (rc == 0)
        rc = push(&p->samples, &p->n_samples, &p->cap_samples, full.v, mask, (int64_t)full.n, (int64_t)full.n, true, e);
    free(mask);
    str_free(&text);
    tok_ids_free(&prompt);
    tok_ids_free(&full);
    return rc ? -1 : 0;
}

/* Samples in a seeded order, each into the fullest of the last 16 open rows that has room, else into a new row. */
static int pack_samples(struct packer *p, uint64_t seed, struct err *e)
{
    int64_t *perm = malloc((p->n_samples + 1) * sizeof *perm);
    if (!perm)
        return err_nomem(e, p->n_samples * sizeof *perm, "sample order");
    ctr_permutation(seed, 0x7061636bull, perm, p->n_samples);
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < p->n_samples; i++) {
        const struct row *s = &p->samples[perm[i]];
        struct row *best = NULL;
        for (size_t k = p->n > 16 ? p->n - 16 : 0; k < p->n; k++)
            if (p->rows[k].n + s->n <= p->seq && (!best || p->rows[k].n > best->n))
                best = &p->rows[k];
        if (!best) {
            rc = push(&p->rows, &p->n, &p->cap, NULL, NULL, 0, p->seq, true, e);
            best = rc == 0 ? &p->rows[p->n - 1] : NULL;
        }
        if (best) {
            memcpy(best->ids + best->n, s->ids, (size_t)s->n * sizeof *s->ids);
            memcpy(best->mask + best->n, s->mask, (size_t)s->n);
            best->n += s->n;
        }
    }
    free(perm);
    return rc;
}

static int take_text(void *ctx, const char *text, size_t n, struct err *e)
{
    struct packer *p = ctx;
    return tok_encode(p->tok, text, n, false, &p->text, e) != 0 ? err_wrap(e, "'%s'", p->file) : 0;
}

static int read_file(struct packer *p, const char *path, const char *key, struct err *e)
{
    p->file = path;
    return text_documents(path, key, take_text, p, e);
}

static int read_text(struct packer *p, const char *path, const char *key, struct err *e)
{
    if (!dir_exists(path))
        return read_file(p, path, key, e);
    struct names names;
    char file[1024];
    TRY(dir_list(path, &names, e));
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < names.n; i++)
        if (strncmp(names.v[i], "README", 6) && names.v[i][0] != '.')
            rc = read_file(p, path_join(file, path, names.v[i]), key, e);
    names_free(&names);
    return rc;
}

/* Blocks of the token stream, evenly spread over it; repeat: as often as it takes, each time cut at other places. */
static int text_rows(struct packer *p, int64_t want, bool repeat, struct err *e)
{
    int64_t have = (int64_t)p->text.n / p->seq, once = MIN(want, have);
    if (want > have && (!repeat || have == 0))
        return ERR(e, E_INPUT,
                   "pack: %" PRId64 " rows of text wanted, the files hold %" PRId64 " rows of %" PRId64
                   " tokens; give more text, a smaller share of it, or take it more than once (repeat_text)",
                   want, have, p->seq);
    uint8_t *mask = malloc((size_t)p->seq);
    if (!mask)
        return err_nomem(e, (size_t)p->seq, "a mask");
    memset(mask, TOK_PRESENT, (size_t)p->seq);
    int rc = 0;
    for (int64_t i = 0; rc == 0 && i < want; i++) {
        int64_t pass = i / once, at = (i % once * have / once) * p->seq + pass * 379 % p->seq;
        rc = push(&p->rows, &p->n, &p->cap, p->text.v + MIN(at, (int64_t)p->text.n - p->seq), mask, p->seq, p->seq, false, e);
    }
    free(mask);
    return rc;
}

static int write_rows(struct packer *p, const char *dir, uint64_t seed, struct shard_out *o, struct err *e)
{
    int64_t *perm = malloc((p->n + 1) * sizeof *perm);
    if (!perm)
        return err_nomem(e, p->n * sizeof *perm, "row order");
    ctr_permutation(seed, 0x726f7773ull, perm, p->n);
    int rc = shard_create(o, dir, p->seq, tok_vocab_size(p->tok), e);
    for (size_t i = 0; rc == 0 && i < p->n; i++) {
        const struct row *r = &p->rows[perm[i]];
        rc = shard_add(o, r->ids, r->mask, r->n, r->ruler, e);
        if (rc != 0)
            shard_abort(o);
    }
    free(perm);
    return rc != 0 ? -1 : shard_commit(o, tok_sha256(p->tok), e);
}

static int pack_sources(struct packer *p, const struct node *n, struct err *e)
{
    char path[1024];
    for (size_t i = 0; i < n->kind->n_params; i++) {
        if (strcmp(n->kind->params[i].name, "ruler") != 0)
            continue;
        for (size_t k = 0; n->ref[i] && n->ref[i][k]; k++)
            TRY(ruler_each_sample(node_out(path, n->ref[i][k], "."), NULL, take_sample, p, e));
        const char *folders = n->ref[i] || !n->path[i] ? "" : n->path[i]; /* by flag, or an input */
        for (const char *s = folders; *s; s += strcspn(s, ","), s += *s == ',') {
            snprintf(path, sizeof path, "%.*s", (int)MIN(strcspn(s, ","), sizeof path - 1), s);
            TRY(ruler_each_sample(path, NULL, take_sample, p, e));
        }
    }
    TRY(pack_samples(p, (uint64_t)node_i64(n, "seed"), e));
    for (const char *s = node_str(n, "text"); *s; s += strcspn(s, ","), s += *s == ',') {
        char file[1024];
        snprintf(path, sizeof path, "%.*s", (int)strcspn(s, ","), s);
        if (!file_exists(path) && !dir_exists(path))
            TRY(cli_bundled(file, path, e));
        else
            snprintf(file, sizeof file, "%s", path);
        TRY(read_text(p, file, node_str(n, "key"), e));
    }
    if (p->text.n) {
        double share = node_f64(n, "text_share");
        int64_t want = p->n ? (int64_t)floor((double)p->n * share / (1 - fmin(share, 0.999)) + 0.5) : node_i64(n, "text_rows");
        TRY(text_rows(p, want ? want : (int64_t)p->text.n / p->seq, node_bool(n, "repeat_text"), e));
    }
    if (p->n)
        return 0;
    if (!node_has(n, "ruler") && !*node_str(n, "text"))
        return ERR(e, E_USAGE, "pack: nothing to pack: give 'ruler' or 'text'");
    return ERR(e, E_INPUT,
               "pack: not one row of %" PRId64 " tokens: %zu samples of at most that length and %zu tokens of text came out of the inputs",
               p->seq, p->n_samples, p->text.n);
}

static int pack_run(void *ctx, const struct node *n, struct run *r, struct err *e)
{
    struct env *env = ctx;
    const struct tok *tok;
    struct shard_out o = {0};
    char path[1024], mp[1024];
    TRY(env_tok(env, model_path(node_path(n, "model", path), mp), &tok, e));
    struct packer p = {.tok = tok, .seq = node_i64(n, "seq")};
    int rc = pack_sources(&p, n, e);
    if (rc == 0)
        rc = write_rows(&p, r->out, (uint64_t)node_i64(n, "seed"), &o, e);
    if (p.dropped)
        log_warn("pack: %" PRId64 " samples longer than %" PRId64 " tokens were left out", p.dropped, p.seq);
    if (rc == 0) {
        struct result res;
        double share = (double)o.answer_tokens / (double)MAX(o.tokens, 1);
        result_begin(&res);
        jw_ki64(&res.w, "rows", o.rows);
        jw_ki64(&res.w, "ruler_rows", o.ruler_rows);
        jw_ki64(&res.w, "text_rows", o.text_rows);
        jw_ki64(&res.w, "tokens", o.tokens);
        jw_kf64(&res.w, "answer_share", share);
        jw_ki64(&res.w, "dropped", p.dropped);
        rc = result_save(&res, r, e);
        log_info("pack: %" PRId64 " rows (%" PRId64 " of text), %" PRId64 " tokens, %.1f %% of them answers", o.rows, o.text_rows, o.tokens,
                 100 * share);
    }
    for (size_t i = 0; i < p.n; i++) {
        free(p.rows[i].ids);
        free(p.rows[i].mask);
    }
    for (size_t i = 0; i < p.n_samples; i++) {
        free(p.samples[i].ids);
        free(p.samples[i].mask);
    }
    free(p.rows);
    free(p.samples);
    tok_ids_free(&p.text);
    return rc ? -1 : 0;
}
const struct stage_kind kind_pack = {.name = "pack", .about = "token shard from RULER samples and text", .version = 1,
                                     .params = pack_params, .n_params = ARRAY_LEN(pack_params), .run = pack_run, .host = stage_on_host};

/* ---- ruler ---- */

static const struct param_spec ruler_params[] = {
    {.name = "model", .type = PT_REF, .help = "a teacher or distill runs", .fan = true},
    {.name = "data", .type = PT_REF, .help = "a ruler-gen run"},
    {.name = "batch", .type = PT_INT, .unit = "samples", .def = "24", .lo = 1, .hi = 4096,
     .help = "sequences decoded together; changes no result", .free = true},
    {.name = "allow_cost_mismatch", .type = PT_BOOL, .def = "false", .free = true,
     .help = "hybrids whose Window layers cost another w/T here than where their layers were chosen; otherwise an error"}};

static int ruler_plan(void *ctx, const struct node *n, struct stage_cost *c, struct err *e)
{
    TRY(cost_match_plan(n, e));
    return stage_plan(ctx, n, c, e);
}

/* What a sequence of the longest evaluation length costs: counted FLOPs of a prefill by token (the head not included), and bytes of
 * cache and state after it. */
static int context_cost(const struct model *m, const struct node *n, struct jw *w, struct err *e)
{
    int64_t lengths[64], top = 0;
    double flops;
    const struct node *data = node_ref(n, "data");
    size_t k = data ? node_list_i64(data, "lengths", lengths, ARRAY_LEN(lengths)) : 0;
    for (size_t i = 0; i < k; i++)
        top = MAX(top, lengths[i]);
    if (!top)
        return 0; /* the data came by flag, as a folder */
    TRY(model_flops(m, 1, top, false, false, &flops, e));
    jw_ki64(w, "context", top);
    jw_kf64(w, "prefill_flops_token", flops / (double)top);
    jw_ki64(w, "cache_bytes", cache_bytes(m, 1, top));
    return 0;
}

static int ruler_stage(void *ctx, const struct node *n, struct run *r, struct err *e)
{
    struct env *env = ctx;
    struct model *m = NULL;
    struct ruler_scores s = {0};
    struct result res;
    char path[1024], mp[1024], data[1024];
    struct model_open_opts mo = {.want_tokenizer = true};
    TRY(env_backend(env, e));
    TRY(model_open(&m, env->rt.be, model_path(node_path(n, "model", path), mp), &mo, e));
    struct ruler_glue g = {.m = m, .tok = m->tok, .batch = (int32_t)node_i64(n, "batch")};
    struct ruler_run_opts o = {.data_dir = node_path(n, "data", data), .out_dir = r->out};
    ruler_glue_fill(&o, &g);
    int rc = m->tok ? 0 : ERR(e, E_INPUT, "'%s' has no tokenizer", mp);
    if (rc == 0)
        rc = ruler_run(&o, e) || ruler_score(r->out, &s, e);
    if (rc == 0) {
        log_info("ruler: %" PRId64 " prompt tokens, %" PRId64 " of them computed", g.given, g.computed);
        result_begin(&res);
        jw_kf64(&res.w, "mean", s.mean);
        jw_kf64(&res.w, "se", s.se);
        jw_kf64(&res.w, "nll", s.nll);
        jw_ki64(&res.w, "tasks", (int64_t)s.n);
        for (size_t i = 0; i < s.n; i++) {
            char key[64];
            snprintf(key, sizeof key, "%s", s.task[i].name);
            jw_kf64(&res.w, key, s.task[i].mean);
            snprintf(key, sizeof key, "%s_se", s.task[i].name);
            jw_kf64(&res.w, key, s.task[i].se);
            snprintf(key, sizeof key, "%s_nll", s.task[i].name);
            jw_kf64(&res.w, key, s.task[i].nll);
        }
        jw_ki64(&res.w, "samples", s.n ? s.task[0].n : 0);
        rc = context_cost(m, n, &res.w, e) || result_save(&res, r, e);
    }
    ruler_scores_free(&s);
    model_close(m);
    return rc ? -1 : 0;
}
const struct stage_kind kind_ruler = {.name = "ruler", .about = "RULER predictions and scores", .version = 1, .params = ruler_params,
                                      .n_params = ARRAY_LEN(ruler_params), .plan = ruler_plan, .run = ruler_stage};
