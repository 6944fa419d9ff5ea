/* Question files in their original layouts: SQuAD 2.0 and HotpotQA (distractor setting). */
#include <stdlib.h>
#include <string.h>

#include "core/hash.h"
#include "core/jread.h"
#include "ruler/gen.h"

enum { MAX_FILE = 256 << 20 };

struct load {
    struct ruler_qa *qa;
    struct jdoc d;
    size_t cap;
};

void ruler_qa_free(struct ruler_qa *q)
{
    list_free(&q->docs);
    free(q->order);
    free(q->q);
    arena_free(&q->mem);
    *q = (struct ruler_qa){0};
}

static struct question *add_question(struct load *l, const char *query, size_t n_answers, size_t n_ctx, size_t n_more, struct err *e)
{
    struct ruler_qa *qa = l->qa;
    if (qa->n_q == l->cap) {
        size_t cap = l->cap ? 2 * l->cap : 1024;
        struct question *v = realloc(qa->q, cap * sizeof *v);
        if (!v) {
            err_nomem(e, cap * sizeof *v, "questions");
            return NULL;
        }
        qa->q = v;
        l->cap = cap;
    }
    struct question *q = &qa->q[qa->n_q++];
    *q = (struct question){.query = arena_strdup(&qa->mem, query),
                           .answer = arena_array(&qa->mem, n_answers + 1, sizeof *q->answer),
                           .ctx = arena_array(&qa->mem, n_ctx + 1, sizeof *q->ctx),
                           .more = arena_array(&qa->mem, n_more + 1, sizeof *q->more)};
    return arena_ok(&qa->mem, "questions", e) ? NULL : q;
}

static int doc_index(struct load *l, const char *text, int64_t *out)
{
    *out = list_find(&l->qa->docs, text, strlen(text));
    if (*out < 0)
        BUG("a document got lost");
    return 0;
}

static int finish_docs(struct ruler_qa *qa, struct err *e)
{
    list_sort_unique(&qa->docs);
    qa->order = malloc((qa->docs.n + 1) * sizeof *qa->order);
    if (!qa->order)
        return err_nomem(e, qa->docs.n * sizeof *qa->order, "documents");
    for (size_t i = 0; i < qa->docs.n; i++)
        qa->order[i] = (int64_t)i;
    return 0;
}

/* ---- SQuAD ---- */

/* One article's questions; doc[i]: document of paragraph i. */
static int squad_questions(struct load *l, const json_t *paragraphs, const int64_t *doc, struct err *e)
{
    size_t n_par = json_array_size(paragraphs);
    for (size_t p = 0; p < n_par; p++) {
        const json_t *qas, *par = json_array_get(paragraphs, p);
        TRY(jget_arr(&l->d, par, "paragraphs[]", "qas", &qas, e));
        for (size_t i = 0; i < json_array_size(qas); i++) {
            const json_t *qa = json_array_get(qas, i), *answers;
            const char *query, *text;
            bool impossible = false;
            TRY(jget_bool_opt(&l->d, qa, "qas[]", "is_impossible", &impossible, e));
            if (impossible)
                continue;
            TRY(jget_str(&l->d, qa, "qas[]", "question", &query, e));
            TRY(jget_arr(&l->d, qa, "qas[]", "answers", &answers, e));
            struct question *q = add_question(l, query, json_array_size(answers), 1, n_par, e);
            if (!q)
                return -1;
            for (size_t a = 0; a < json_array_size(answers); a++) {
                TRY(jget_str(&l->d, json_array_get(answers, a), "answers[]", "text", &text, e));
                q->answer[q->n_answers++] = arena_strdup(&l->qa->mem, text);
            }
            if (!q->n_answers)
                return ERR(e, E_INPUT, "%s: question '%.80s' is answerable but has no answers", l->d.file, query);
            q->ctx[q->n_ctx++] = doc[p];
            for (size_t k = 0; k < n_par; k++)
                if (doc[k] != doc[p])
                    q->more[q->n_more++] = doc[k];
        }
    }
    return arena_ok(&l->qa->mem, "questions", e);
}

static int squad_pass(struct load *l, const json_t *data, bool docs_only, struct err *e)
{
    for (size_t i = 0; i < json_array_size(data); i++) {
        const json_t *paragraphs;
        const char *text;
        TRY(jget_arr(&l->d, json_array_get(data, i), "data[]", "paragraphs", &paragraphs, e));
        size_t n = json_array_size(paragraphs);
        int64_t *doc = malloc((n + 1) * sizeof *doc);
        int rc = doc ? 0 : err_nomem(e, n * sizeof *doc, "paragraphs");
        for (size_t k = 0; !rc && k < n; k++) {
            rc = jget_str(&l->d, json_array_get(paragraphs, k), "paragraphs[]", "context", &text, e);
            if (!rc)
                rc = docs_only ? list_add(&l->qa->docs, text, strlen(text), e) : doc_index(l, text, &doc[k]);
        }
        if (!rc && !docs_only)
            rc = squad_questions(l, paragraphs, doc, e);
        free(doc);
        if (rc)
            return rc;
    }
    return 0;
}

/* ---- HotpotQA ---- */

/* Context i of a question: title and its sentences, from [[title, [sentence..]]..] or {"title": [..], "sentences": [[..]..]}. */
static int hotpot_doc(const struct load *l, const json_t *ctx, size_t i, struct str *out, struct err *e)
{
    const json_t *pair = json_array_get(ctx, i);
    const json_t *title = json_is_array(ctx) ? json_array_get(pair, 0) : json_array_get(json_object_get(ctx, "title"), i);
    const json_t *sentences = json_is_array(ctx) ? json_array_get(pair, 1) : json_array_get(json_object_get(ctx, "sentences"), i);
    if (!json_is_string(title) || !json_is_array(sentences))
        return ERR(e, E_INPUT, "%s: context[%zu] is not a title and a list of sentences", l->d.file, i);
    str_clear(out);
    str_printf(out, "%s\n", json_string_value(title));
    for (size_t k = 0; k < json_array_size(sentences); k++) {
        const char *s = json_string_value(json_array_get(sentences, k));
        if (!s)
            return ERR(e, E_INPUT, "%s: context[%zu]: sentence %zu is not a string", l->d.file, i, k);
        str_puts(out, s);
    }
    return str_ok(out, "a document", e);
}

static int hotpot_one(struct load *l, const json_t *rec, bool docs_only, struct str *s, struct err *e)
{
    const json_t *ctx = json_object_get(rec, "context");
    size_t n = json_array_size(json_is_array(ctx) ? ctx : json_object_get(ctx, "title"));
    const char *query, *answer;
    struct question *q = NULL;
    TRY(jget_str(&l->d, rec, "", "question", &query, e));
    TRY(jget_str(&l->d, rec, "", "answer", &answer, e));
    if (!n)
        return ERR(e, E_INPUT, "%s: question '%.80s' has no context", l->d.file, query);
    if (!docs_only) {
        q = add_question(l, query, 1, n, 0, e);
        if (!q)
            return -1;
        q->answer[q->n_answers++] = arena_strdup(&l->qa->mem, answer);
    }
    for (size_t i = 0; i < n; i++) {
        TRY(hotpot_doc(l, ctx, i, s, e));
        if (docs_only)
            TRY(list_add(&l->qa->docs, str_c(s), s->len, e));
        else
            doc_index(l, str_c(s), &q->ctx[q->n_ctx++]);
    }
    return arena_ok(&l->qa->mem, "questions", e);
}

static int hotpot_pass(struct load *l, bool docs_only, struct err *e)
{
    struct str s = STR_INIT;
    int rc = 0;
    for (size_t i = 0; !rc && i < json_array_size(l->d.root); i++) {
        rc = hotpot_one(l, json_array_get(l->d.root, i), docs_only, &s, e);
        if (rc)
            err_wrap(e, "record %zu", i);
    }
    str_free(&s);
    return rc;
}

/* ---- both ---- */

static int both_passes(struct load *l, int which, struct err *e)
{
    const json_t *data = NULL;
    if (which == 0)
        TRY(jget_arr(&l->d, l->d.root, "", "data", &data, e));
    else if (!json_is_array(l->d.root))
        return ERR(e, E_INPUT, "%s: expected a JSON array of HotpotQA records", l->d.file);
    TRY(which ? hotpot_pass(l, true, e) : squad_pass(l, data, true, e));
    TRY(finish_docs(l->qa, e));
    TRY(which ? hotpot_pass(l, false, e) : squad_pass(l, data, false, e));
    if (!l->qa->n_q)
        return ERR(e, E_INPUT, "%s: holds no answerable question", l->d.file);
    return 0;
}

int ruler_qa_load(struct ruler_res *r, int which, const char *path, struct err *e)
{
    struct load l = {.qa = &r->qa[which]};
    ruler_qa_free(l.qa);
    arena_init(&l.qa->mem, 0);
    int rc = ruler_not_html(path, e);
    rc = rc ? rc : sha256_file(path, l.qa->sha, e);
    rc = rc ? rc : jdoc_load(&l.d, path, MAX_FILE, e);
    rc = rc ? rc : both_passes(&l, which, e);
    jdoc_free(&l.d);
    if (rc)
        ruler_qa_free(l.qa);
    return rc;
}
