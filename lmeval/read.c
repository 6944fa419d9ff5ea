/* Documents from the files that the benchmarks are distributed as, and from the hub's rows. */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/fs.h"
#include "core/hash.h"
#include "core/jwrite.h"
#include "lmeval/lmeval.h"
#include "lmeval/rows.h"

/* ---- where files are ---- */

/* %n task, %s set, %S Test or Train, %e test or train, %v dev or train */
struct place {
    enum lme_kind kind;
    enum lme_split split;
    const char *roots, *names; /* separated by spaces; "." = the folder itself */
};
static const struct place places[] = {
    {LME_MMLU, LME_EVAL, "mmlu mmlu/data . data",
     "test/%s_test.csv %s_test.csv %s/test.jsonl %s/test.json test/%s.jsonl test/%s_test.jsonl"},
    {LME_MMLU, LME_POOL, "mmlu mmlu/data . data", "dev/%s_dev.csv %s_dev.csv %s/dev.jsonl %s/dev.json dev/%s.jsonl dev/%s_dev.jsonl"},
    {LME_ARC, LME_EVAL, "arc/%s ai2_arc/%s ARC-V1-Feb2018-2/%s %s %n .", "%s-Test.jsonl test.jsonl test.json"},
    {LME_ARC, LME_POOL, "arc/%s ai2_arc/%s ARC-V1-Feb2018-2/%s %s %n .", "%s-Train.jsonl train.jsonl train.json"},
    {LME_PIQA, LME_EVAL, "piqa physicaliqa-train-dev .", "valid.jsonl dev.jsonl validation.jsonl validation.json"},
    {LME_PIQA, LME_POOL, "piqa physicaliqa-train-dev .", "train.jsonl train.json"},
    {LME_WINOGRANDE, LME_EVAL, "winogrande winogrande_1.1 winogrande/winogrande_xl winogrande_xl .",
     "dev.jsonl validation.jsonl validation.json"},
    {LME_WINOGRANDE, LME_POOL, "winogrande winogrande_1.1 winogrande/winogrande_xl winogrande_xl .",
     "train_xl.jsonl train.jsonl train.json"},
};

/* The k-th word of a list with %s and %n put in; false past the end. */
static bool word_at(const char *list, int k, const struct lme_task *t, char out[256])
{
    for (; k > 0; k--) {
        list += strcspn(list, " ");
        if (!*list++)
            return false;
    }
    size_t n = 0, end = strcspn(list, " ");
    for (size_t i = 0; i < end && n < 200; i++) {
        const char *put = list[i] == '%' ? list[i + 1] == 's' ? t->set : t->name : NULL;
        if (put) {
            n += (size_t)snprintf(out + n, 256 - n, "%s", put);
            i++;
        } else
            out[n++] = list[i];
    }
    out[n] = 0;
    return true;
}

static const struct place *place_of(const struct lme_task *t, enum lme_split split)
{
    for (size_t i = 0; i < ARRAY_LEN(places); i++)
        if (places[i].kind == t->kind && places[i].split == split)
            return &places[i];
    BUG("task kind %d has no place", (int)t->kind);
}

bool lme_find(const struct lme_task *t, enum lme_split split, const char *dir, char path[1024])
{
    const struct place *p = place_of(t, split);
    char root[256], name[256];
    for (int r = 0; word_at(p->roots, r, t, root); r++)
        for (int k = 0; word_at(p->names, k, t, name); k++) {
            int n = !strcmp(root, ".") ? snprintf(path, 1024, "%s/%s", dir, name) : snprintf(path, 1024, "%s/%s/%s", dir, root, name);
            if (n < 1024 && file_exists(path))
                return true;
        }
    return false;
}

/* ---- filling documents ---- */

struct loader {
    const struct lme_task *t;
    struct lme_docs *out;
    int letters; /* MMLU: 1 letters, 2 numbers, 0 not seen yet */
    bool labels; /* PIQA, WinoGrande: rows may come without their label, a .lst file follows */
};

static struct lme_doc *new_doc(struct loader *l, int64_t line, struct err *e)
{
    struct lme_docs *o = l->out;
    if (o->n == o->cap) {
        int64_t cap = o->cap ? 2 * o->cap : 256;
        struct lme_doc *v = realloc(o->doc, (size_t)cap * sizeof *v);
        if (!v) {
            err_nomem(e, (size_t)cap * sizeof *v, "documents");
            return NULL;
        }
        o->doc = v;
        o->cap = cap;
    }
    o->doc[o->n] = (struct lme_doc){.line = line, .gold = -1};
    return &o->doc[o->n++];
}

static int keep(struct loader *l, const char **dst, const char *text, struct err *e)
{
    *dst = arena_strdup(&l->out->arena, text);
    return arena_ok(&l->out->arena, "documents", e);
}

static int need_text(const struct loader *l, int64_t line, const char *what, const char *text, struct err *e)
{
    return *text ? 0 : ERR(e, E_INPUT, "%s:%" PRId64 ": %s is empty", l->out->path, line, what);
}

static bool header_row(const char *const *f)
{
    char last[16];
    snprintf(last, sizeof last, "%s", f[5]);
    for (char *p = last; *p; p++)
        *p = (char)tolower((unsigned char)*p);
    return !strcmp(last, "answer");
}

static int mmlu_row(void *ctx, int64_t line, const char *const *f, int n, struct err *e)
{
    struct loader *l = ctx;
    const char *path = l->out->path;
    if (n != 6)
        return ERR(e, E_INPUT, "%s:%" PRId64 ": %d columns; expected 6: question, four choices, answer", path, line, n);
    if (line == 1 && header_row(f))
        return 0;
    const char *a = f[5];
    bool letter = a[0] >= 'A' && a[0] <= 'D' && !a[1], number = a[0] >= '0' && a[0] <= '3' && !a[1];
    if (!letter && !number)
        return ERR(e, E_INPUT, "%s:%" PRId64 ": answer '%.20s'; expected A, B, C or D (or 0 to 3)", path, line, a);
    if (l->letters && l->letters != (letter ? 1 : 2))
        return ERR(e, E_INPUT, "%s:%" PRId64 ": answer '%s' in a file whose other answers are %s", path, line, a,
                   letter ? "numbers" : "letters");
    l->letters = letter ? 1 : 2;
    struct lme_doc *d = new_doc(l, line, e);
    if (!d)
        return -1;
    TRY(need_text(l, line, "the question", f[0], e));
    TRY(keep(l, &d->question, f[0], e));
    d->n_choice = 4;
    for (int i = 0; i < 4; i++) {
        char what[24];
        snprintf(what, sizeof what, "choice %c", 'A' + i);
        TRY(need_text(l, line, what, f[i + 1], e));
        TRY(keep(l, &d->choice[i], f[i + 1], e));
    }
    d->gold = letter ? a[0] - 'A' : a[0] - '0';
    return 0;
}

static int add_choice(struct loader *l, struct lme_doc *d, const struct jdoc *j, const json_t *text, const json_t *label, struct err *e)
{
    char what[32];
    if (d->n_choice == LME_MAX_CHOICES)
        return ERR(e, E_INPUT, "%s: more than %d choices", j->file, LME_MAX_CHOICES);
    if (!json_is_string(text) || (label && !json_is_string(label)))
        return ERR(e, E_INPUT, "%s: choice %d is no text with a label", j->file, d->n_choice + 1);
    snprintf(what, sizeof what, "choice %d", d->n_choice + 1);
    TRY(need_text(l, d->line, what, json_string_value(text), e));
    TRY(keep(l, &d->choice[d->n_choice], json_string_value(text), e));
    if (label)
        TRY(keep(l, &d->label[d->n_choice], json_string_value(label), e));
    d->n_choice++;
    return 0;
}

/* Hub form of MMLU: {question, choices[4], answer: 0..3}. */
static int mmlu_object(struct loader *l, struct lme_doc *d, const struct jdoc *j, struct err *e)
{
    const char *q;
    const json_t *c;
    int64_t gold;
    TRY(jget_str(j, j->root, "", "question", &q, e));
    TRY(jget_arr(j, j->root, "", "choices", &c, e));
    TRY(jget_i64(j, j->root, "", "answer", 0, 3, &gold, e));
    if (json_array_size(c) != 4)
        return ERR(e, E_INPUT, "%s: %zu choices; expected 4", j->file, json_array_size(c));
    TRY(need_text(l, d->line, "the question", q, e));
    TRY(keep(l, &d->question, q, e));
    for (size_t i = 0; i < 4; i++)
        TRY(add_choice(l, d, j, json_array_get(c, i), NULL, e));
    d->gold = (int)gold;
    return 0;
}

/* ARC: AI2's nesting, or the hub's {question, choices: {text[], label[]}}. */
static int arc_object(struct loader *l, struct lme_doc *d, const struct jdoc *j, struct err *e)
{
    const json_t *q = json_object_get(j->root, "question"), *c;
    const char *stem, *id = "", *key;
    TRY(jget_str_opt(j, j->root, "", "id", &id, e));
    TRY(jget_str(j, j->root, "", "answerKey", &key, e));
    if (json_is_object(q)) {
        TRY(jget_str(j, q, "question", "stem", &stem, e));
        TRY(jget_arr(j, q, "question", "choices", &c, e));
        for (size_t i = 0; i < json_array_size(c); i++) {
            const json_t *label = json_object_get(json_array_get(c, i), "label");
            if (!label)
                return ERR(e, E_INPUT, "%s: choice %zu has no label", j->file, i + 1);
            TRY(add_choice(l, d, j, json_object_get(json_array_get(c, i), "text"), label, e));
        }
    } else {
        const json_t *text, *label;
        TRY(jget_str(j, j->root, "", "question", &stem, e));
        TRY(jget_obj(j, j->root, "", "choices", &c, e));
        TRY(jget_arr(j, c, "choices", "text", &text, e));
        TRY(jget_arr(j, c, "choices", "label", &label, e));
        if (json_array_size(text) != json_array_size(label))
            return ERR(e, E_INPUT, "%s: %zu choices with %zu labels", j->file, json_array_size(text), json_array_size(label));
        for (size_t i = 0; i < json_array_size(text); i++)
            TRY(add_choice(l, d, j, json_array_get(text, i), json_array_get(label, i), e));
    }
    if (d->n_choice < 2)
        return ERR(e, E_INPUT, "%s: %d choices; expected at least 2", j->file, d->n_choice);
    TRY(need_text(l, d->line, "the question", stem, e));
    TRY(keep(l, &d->question, stem, e));
    TRY(keep(l, &d->id, id, e));
    TRY(keep(l, &d->key, key, e));
    for (int i = d->n_choice - 1; i >= 0; i--)
        if (!strcmp(d->label[i], key))
            d->gold = i;
    if (d->gold < 0) {
        struct str s = STR_INIT;
        for (int i = 0; i < d->n_choice; i++)
            str_printf(&s, "%s%s", i ? ", " : "", d->label[i]);
        ERR(e, E_INPUT, "%s: answerKey '%s' is not among the labels %s", j->file, key, str_c(&s));
        str_free(&s);
        return -1;
    }
    return 0;
}

static int piqa_object(struct loader *l, struct lme_doc *d, const struct jdoc *j, struct err *e)
{
    const char *goal, *sol;
    int64_t label = -1;
    TRY(jget_str(j, j->root, "", "goal", &goal, e));
    TRY(need_text(l, d->line, "the goal", goal, e));
    TRY(keep(l, &d->question, goal, e));
    for (int i = 0; i < 2; i++) {
        const char *name = i ? "sol2" : "sol1";
        TRY(jget_str(j, j->root, "", name, &sol, e));
        TRY(need_text(l, d->line, name, sol, e));
        TRY(keep(l, &d->choice[i], sol, e));
    }
    d->n_choice = 2;
    TRY(jget_i64_opt(j, j->root, "", "label", -1, 1, &label, e));
    d->gold = (int)label;
    return 0;
}

static int winogrande_object(struct loader *l, struct lme_doc *d, const struct jdoc *j, struct err *e)
{
    const char *s, *opt, *answer = "";
    TRY(jget_str(j, j->root, "", "sentence", &s, e));
    TRY(keep(l, &d->question, s, e));
    for (int i = 0; i < 2; i++) {
        const char *name = i ? "option2" : "option1";
        TRY(jget_str(j, j->root, "", name, &opt, e));
        TRY(need_text(l, d->line, name, opt, e));
        TRY(keep(l, &d->choice[i], opt, e));
    }
    d->n_choice = 2;
    const char *blank = strchr(s, '_');
    if (!blank)
        return ERR(e, E_INPUT, "%s: the sentence has no '_'", j->file);
    size_t n = strlen(blank + 1);
    if (py_lspaces(blank + 1, n) == n)
        return ERR(e, E_INPUT, "%s: nothing follows the '_' of the sentence; there is nothing to score", j->file);
    TRY(jget_str_opt(j, j->root, "", "answer", &answer, e));
    if (*answer && strcmp(answer, "1") != 0 && strcmp(answer, "2") != 0)
        return ERR(e, E_INPUT, "%s: answer '%.20s'; expected '1' or '2'", j->file, answer);
    d->gold = *answer ? answer[0] - '1' : -1;
    return 0;
}

static int object_row(void *ctx, int64_t line, const struct jdoc *j, struct err *e)
{
    struct loader *l = ctx;
    struct lme_doc *d = new_doc(l, line, e);
    if (!d)
        return -1;
    switch (l->t->kind) {
    case LME_MMLU:
        return mmlu_object(l, d, j, e);
    case LME_ARC:
        return arc_object(l, d, j, e);
    case LME_PIQA:
        return piqa_object(l, d, j, e);
    case LME_WINOGRANDE:
        return winogrande_object(l, d, j, e);
    }
    BUG("task kind %d", (int)l->t->kind);
}

/* ---- label files ---- */

static int label_line(struct loader *l, const char *lst, int64_t line, const char *p, size_t n, struct err *e)
{
    struct lme_docs *o = l->out;
    char base = l->t->kind == LME_PIQA ? '0' : '1';
    if (n != 1 || p[0] < base || p[0] > base + 1)
        return ERR(e, E_INPUT, "%s:%" PRId64 ": label '%.*s'; expected %c or %c", lst, line, (int)MIN(n, (size_t)20), p, base, base + 1);
    if (line > o->n)
        return 0; /* counted by the caller */
    struct lme_doc *d = &o->doc[line - 1];
    int gold = p[0] - base;
    if (d->gold >= 0 && d->gold != gold)
        return ERR(e, E_INPUT, "%s:%" PRId64 ": label %c, but the row in '%s' has %c", lst, line, p[0], o->path, d->gold + base);
    d->gold = gold;
    return 0;
}

/* X.jsonl -> X-labels.lst: needed where rows have no label, checked where they have. */
static int read_labels(struct loader *l, struct err *e)
{
    struct lme_docs *o = l->out;
    char lst[1100];
    int64_t line = 0, missing = 0;
    const char *dot = strrchr(o->path, '.');
    struct str s = STR_INIT;
    snprintf(lst, sizeof lst, "%.*s-labels.lst", (int)(dot ? dot - o->path : (ptrdiff_t)strlen(o->path)), o->path);
    for (int64_t i = o->n - 1; i >= 0; i--)
        if (o->doc[i].gold < 0)
            missing = o->doc[i].line;
    if (!file_exists(lst))
        return missing ? ERR(e, E_INPUT, "%s:%" PRId64 ": the row has no label and there is no '%s'", o->path, missing, lst) : 0;
    TRY(file_read(lst, 64 << 20, &s, e));
    int rc = 0;
    for (const char *p = str_c(&s), *end = p + s.len; rc == 0 && p < end;) {
        size_t n = strcspn(p, "\r\n");
        rc = label_line(l, lst, ++line, p, n, e);
        p += n;
        p += *p == '\r';
        p += *p == '\n';
    }
    str_free(&s);
    if (rc == 0 && line != o->n)
        rc = ERR(e, E_INPUT, "%s:%" PRId64 ": %" PRId64 " labels for the %" PRId64 " rows of '%s'", lst, MIN(line, o->n) + 1, line, o->n,
                 o->path);
    return rc;
}

/* ---- ---- */

static int not_found(const struct lme_task *t, enum lme_split split, const char *dir, struct err *e)
{
    const struct place *p = place_of(t, split);
    char root[256], name[256];
    word_at(p->roots, 0, t, root);
    word_at(p->names, 0, t, name);
    return ERR(e, E_INPUT,
               "task '%s': no %s under '%s' (looked for %s/%s and other usual places); 'dashlab data list' says where the files come from",
               t->name, split == LME_EVAL ? "evaluation documents" : "documents for few-shot examples", dir, root, name);
}

int lme_load(const struct lme_task *t, enum lme_split split, const char *dir, struct lme_docs *out, struct err *e)
{
    *out = (struct lme_docs){0};
    arena_init(&out->arena, 0);
    struct loader l = {.t = t, .out = out};
    if (!lme_find(t, split, dir, out->path))
        return not_found(t, split, dir, e);
    const char *dot = strrchr(out->path, '.');
    if (dot && !strcmp(dot, ".csv"))
        TRY(csv_each(out->path, mmlu_row, &l, e));
    else
        TRY(json_each(out->path, object_row, &l, e));
    if (!out->n)
        return ERR(e, E_INPUT, "'%s' holds no document", out->path);
    if (t->kind == LME_PIQA || t->kind == LME_WINOGRANDE)
        TRY(read_labels(&l, e));
    return sha256_file(out->path, out->sha256, e);
}

void lme_docs_free(struct lme_docs *d)
{
    arena_free(&d->arena);
    free(d->doc);
    *d = (struct lme_docs){0};
}

/* ---- the hub's form ---- */

static void texts(struct jw *w, const char *key, const char *const *v, int n)
{
    jw_key(w, key);
    jw_arr(w);
    for (int i = 0; i < n; i++)
        jw_str(w, v[i]);
    jw_end_arr(w);
}

void lme_doc_write(const struct lme_task *t, const struct lme_doc *d, struct jw *w)
{
    jw_obj(w);
    switch (t->kind) {
    case LME_MMLU:
        jw_kstr(w, "question", d->question);
        jw_kstr(w, "subject", t->set);
        texts(w, "choices", d->choice, 4);
        jw_ki64(w, "answer", d->gold);
        break;
    case LME_ARC:
        jw_kstr(w, "id", d->id);
        jw_kstr(w, "question", d->question);
        jw_key(w, "choices");
        jw_obj(w);
        texts(w, "text", d->choice, d->n_choice);
        texts(w, "label", d->label, d->n_choice);
        jw_end_obj(w);
        jw_kstr(w, "answerKey", d->key);
        break;
    case LME_PIQA:
        jw_kstr(w, "goal", d->question);
        jw_kstr(w, "sol1", d->choice[0]);
        jw_kstr(w, "sol2", d->choice[1]);
        jw_ki64(w, "label", d->gold);
        break;
    case LME_WINOGRANDE:
        jw_kstr(w, "sentence", d->question);
        jw_kstr(w, "option1", d->choice[0]);
        jw_kstr(w, "option2", d->choice[1]);
        jw_kstr(w, "answer", d->gold ? "2" : "1");
        break;
    }
    jw_end_obj(w);
}

void lme_doc_json(const struct lme_task *t, const struct lme_doc *d, bool pretty, struct str *out)
{
    struct jw w;
    jw_init(&w, out, pretty);
    lme_doc_write(t, d, &w);
}

int lme_content_sha(const struct lme_task *t, const struct lme_docs *d, char hex[65], struct err *e)
{
    struct sha256 h;
    struct str line = STR_INIT;
    TRY(sha256_init(&h, e));
    for (int64_t i = 0; i < d->n; i++) {
        str_clear(&line);
        lme_doc_json(t, &d->doc[i], false, &line);
        str_putc(&line, '\n');
        sha256_add(&h, str_c(&line), line.len);
    }
    sha256_end(&h, hex);
    int rc = str_ok(&line, "a document", e);
    str_free(&line);
    return rc;
}
