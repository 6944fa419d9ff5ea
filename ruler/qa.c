/*
 * Question answering over documents (spec section 5): SQuAD 2.0 (qa_1, data_dir/squad.json) and HotpotQA (qa_2, data_dir/hotpotqa.json) in
 * their original layouts. The files are not bundled.
 */
#include <stdlib.h>
#include <string.h>

#include "core/fs.h"
#include "core/jread.h"
#include "ruler/gen.h"

static const char qa_body[] =
    "Answer the question based on the given documents. Only give me the answer and do not output any other words.\n\nThe following "
    "are given documents.\n\n{context}\n\nAnswer the question based on the given documents. Only give me the answer and do not "
    "output any other words.\n\nQuestion: {query}";
static const char qa_prefix[] = " Answer:";

struct question {
    struct str text;
    struct list outputs, own, more; /* own, more: documents' texts */
};
struct qa {
    struct list docs;
    struct question *q;
    size_t n, cap;
    int64_t at; /* the question of the next text */
};

static void qa_free(struct qa *a)
{
    for (size_t i = 0; i < a->n; i++) {
        str_free(&a->q[i].text);
        list_free(&a->q[i].outputs);
        list_free(&a->q[i].own);
        list_free(&a->q[i].more);
    }
    free(a->q);
    list_free(&a->docs);
}

static struct question *new_question(struct qa *a, const char *text, struct err *e)
{
    if (a->n == a->cap) {
        size_t cap = a->cap ? 2 * a->cap : 256;
        struct question *q = realloc(a->q, cap * sizeof *q);
        if (!q) {
            err_nomem(e, cap * sizeof *q, "questions");
            return NULL;
        }
        a->q = q;
        a->cap = cap;
    }
    struct question *q = &a->q[a->n++];
    *q = (struct question){0};
    str_puts(&q->text, text);
    return q;
}

static int squad_question(struct qa *a, const struct jdoc *d, const json_t *qa, const json_t *paras, size_t own, struct err *e)
{
    const char *text, *z;
    const json_t *answers, *x;
    bool impossible = false;
    size_t i;
    TRY(jget_bool_opt(d, qa, "qas", "is_impossible", &impossible, e));
    if (impossible)
        return 0;
    TRY(jget_str(d, qa, "qas", "question", &text, e));
    TRY(jget_arr(d, qa, "qas", "answers", &answers, e));
    struct question *q = new_question(a, text, e);
    if (!q)
        return -1;
    json_array_foreach(answers, i, x)
    {
        TRY(jget_str(d, x, "answers", "text", &z, e));
        TRY(list_add(&q->outputs, z, strlen(z), e));
    }
    json_array_foreach(paras, i, x)
    {
        TRY(jget_str(d, x, "paragraphs", "context", &z, e));
        TRY(list_add(i == own ? &q->own : &q->more, z, strlen(z), e));
    }
    return 0;
}

static int load_squad(struct qa *a, const struct jdoc *d, struct err *e)
{
    const json_t *data, *art, *paras, *p, *qas, *x;
    const char *z;
    size_t i, j, k;
    TRY(jget_arr(d, d->root, "", "data", &data, e));
    json_array_foreach(data, i, art)
    {
        TRY(jget_arr(d, art, "data", "paragraphs", &paras, e));
        json_array_foreach(paras, j, p)
        {
            TRY(jget_str(d, p, "paragraphs", "context", &z, e));
            TRY(list_add(&a->docs, z, strlen(z), e));
            TRY(jget_arr(d, p, "paragraphs", "qas", &qas, e));
            json_array_foreach(qas, k, x) TRY(squad_question(a, d, x, paras, j, e));
        }
    }
    return 0;
}

/* title + "\n" + sentences */
static int hotpot_doc(const struct jdoc *d, const json_t *c, struct str *out, struct err *e)
{
    const char *title = json_string_value(json_array_get(c, 0));
    const json_t *sents = json_array_get(c, 1), *s;
    size_t i;
    if (!title || !json_is_array(sents))
        return ERR(e, E_INPUT, "%s: a context is not [title, [sentences]]", d->file);
    str_clear(out);
    str_printf(out, "%s\n", title);
    json_array_foreach(sents, i, s)
    {
        if (!json_is_string(s))
            return ERR(e, E_INPUT, "%s: a sentence of '%s' is not a string", d->file, title);
        str_puts(out, json_string_value(s));
    }
    return 0;
}

static int load_hotpot(struct qa *a, const struct jdoc *d, struct str *tmp, struct err *e)
{
    const json_t *x, *ctx, *c;
    const char *text, *answer;
    size_t i, j;
    if (!json_is_array(d->root))
        return ERR(e, E_INPUT, "%s: expected an array of questions", d->file);
    json_array_foreach(d->root, i, x)
    {
        TRY(jget_str(d, x, "question", "question", &text, e));
        TRY(jget_str(d, x, "question", "answer", &answer, e));
        TRY(jget_arr(d, x, "question", "context", &ctx, e));
        struct question *q = new_question(a, text, e);
        if (!q)
            return -1;
        TRY(list_add(&q->outputs, answer, strlen(answer), e));
        json_array_foreach(ctx, j, c)
        {
            TRY(hotpot_doc(d, c, tmp, e));
            TRY(gen_add(&a->docs, tmp, e));
            TRY(gen_add(&q->own, tmp, e));
        }
    }
    return 0;
}

const char *qa_file(const struct ruler_task *t)
{
    return strcmp(t->name, "qa_1") == 0 ? "squad.json" : "hotpotqa.json";
}

static int load(struct qa *a, const struct ruler_task *t, const char *data_dir, struct err *e)
{
    char path[1024];
    bool squad = strcmp(t->name, "qa_1") == 0;
    struct jdoc d = {0};
    struct str tmp = STR_INIT;
    path_join(path, data_dir, qa_file(t));
    if (!file_exists(path))
        return ERR(e, E_INPUT, "task '%s' needs '%s' (%s), which is not bundled; put it there", t->name, path,
                   squad ? "SQuAD dev-v2.0.json" : "hotpot_dev_distractor_v1.json");
    int rc = jdoc_load(&d, path, 64u << 20, e);
    rc = rc ? rc : squad ? load_squad(a, &d, e) : load_hotpot(a, &d, &tmp, e);
    if (!rc && !a->n)
        rc = ERR(e, E_INPUT, "'%s': no question that can be answered", path);
    list_sort_unique(&a->docs);
    jdoc_free(&d);
    str_free(&tmp);
    return rc;
}

static int64_t doc_index(const struct qa *a, const char *text)
{
    return list_find(&a->docs, text, strlen(text));
}

/* The documents of question q for a size below the number of documents; 1 = the reference raises an exception. */
static int pick_docs(struct gen *g, const struct question *q, int64_t n, int64_t *out, int64_t *n_out, struct err *e)
{
    const struct qa *a = g->qa;
    int64_t own = (int64_t)q->own.n, more = (int64_t)q->more.n, total = (int64_t)a->docs.n, k = 0, rest = 0;
    for (int64_t i = 0; i < own; i++)
        out[k++] = doc_index(a, q->own.v[i]);
    int64_t *pick = malloc((size_t)(total + more + 1) * sizeof *pick), *others = malloc((size_t)(total + 1) * sizeof *others);
    char *used = calloc((size_t)total + 1, 1);
    int rc = pick && others && used ? GEN_OK : err_nomem(e, (size_t)total * 16, "choosing documents");
    if (!rc && n - own > more) {
        for (int64_t i = 0; i < more; i++)
            out[k++] = doc_index(a, q->more.v[i]);
        for (int64_t i = 0; i < k; i++)
            used[out[i]] = 1;
        for (int64_t i = 0; i < total; i++)
            if (!used[i])
                others[rest++] = i;
        int64_t want = MAX(0, n - own - more);
        if (want > rest)
            rc = GEN_RETRY;
        else if (py_sample(&g->py, rest, want, pick))
            rc = err_nomem(e, 1024, "choosing documents");
        for (int64_t i = 0; !rc && i < want; i++)
            out[k++] = others[pick[i]];
    } else if (!rc && n - own < 0)
        rc = GEN_RETRY;
    else if (!rc) {
        if (py_sample(&g->py, more, n - own, pick))
            rc = err_nomem(e, 1024, "choosing documents");
        for (int64_t i = 0; !rc && i < n - own; i++)
            out[k++] = doc_index(a, q->more.v[pick[i]]);
    }
    free(pick);
    free(others);
    free(used);
    *n_out = k;
    return rc;
}

static int qa_text(struct gen *g, int64_t n, struct err *e)
{
    const struct qa *a = g->qa;
    const struct question *q = &a->q[a->at];
    struct str ctx = STR_INIT, templ = STR_INIT;
    int64_t k = n, total = (int64_t)a->docs.n, *doc = malloc(((size_t)n + q->own.n + q->more.n + 1) * sizeof *doc);
    if (!doc)
        return err_nomem(e, (size_t)n * sizeof *doc, "choosing documents");
    int rc = GEN_OK;
    if (n < total)
        rc = pick_docs(g, q, n, doc, &k, e);
    for (int64_t i = 0; n >= total && i < n; i++)
        doc[i] = i % total;
    const int64_t *p = rc ? NULL : gen_perm(g, (size_t)k, e);
    if (!rc && !p)
        rc = -1;
    for (int64_t i = 0; !rc && i < k; i++)
        str_printf(&ctx, "%sDocument %" PRId64 ":\n%s", i ? "\n\n" : "", i + 1, a->docs.v[doc[p[i]]]);
    if (!rc) {
        str_printf(&templ, "%s%s%s%s", g->before, qa_body, g->after, qa_prefix);
        str_clear(&g->text);
        struct fill f[] = {{"context", &ctx}, {"query", &q->text}};
        gen_fill(&g->text, str_c(&templ), f, ARRAY_LEN(f));
        rc = str_ok(&g->text, "a prompt", e);
    }
    free(doc);
    str_free(&ctx);
    str_free(&templ);
    return rc;
}

static int make_all(struct gen *g, int64_t samples, struct str *out, struct err *e)
{
    struct qa *a = g->qa;
    struct size_rule r = {.inc = 10, .lower = 1, .probe = 10, .max = g->max_len, .extra = g->task->gen_tokens};
    int64_t size, tokens;
    if (samples > (int64_t)a->n)
        return ERR(e, E_INPUT, "task '%s': %" PRId64 " samples asked for, the file has %zu questions", g->task->name, samples, a->n);
    for (int64_t i = 0; i < samples; i++)
        r.lower = MAX(r.lower, (int64_t)a->q[i].own.n);
    r.limit = MAX(r.lower, (int64_t)a->docs.n);
    TRY(gen_search(g, qa_text, &r, &size, e));
    for (a->at = 0; a->at < samples; a->at++) {
        TRY(gen_fit(g, qa_text, &r, size, r.extra, &tokens, e));
        list_clear(&g->answers);
        for (size_t i = 0; i < a->q[a->at].outputs.n; i++)
            TRY(list_add(&g->answers, a->q[a->at].outputs.v[i], strlen(a->q[a->at].outputs.v[i]), e));
        TRY(gen_record(g, a->at, tokens, out, e));
    }
    return 0;
}

int qa_make(struct gen *g, int64_t samples, const char *data_dir, struct str *out, struct err *e)
{
    struct qa a = {0};
    int rc = load(&a, g->task, data_dir, e);
    g->qa = &a;
    rc = rc ? rc : make_all(g, samples, out, e);
    g->qa = NULL;
    qa_free(&a);
    return rc;
}
