/* Predictions in the references' own layouts: NVIDIA's pred folders, lm-evaluation-harness' sample files. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/fs.h"
#include "core/hash.h"
#include "core/log.h"
#include "ruler/sample.h"

enum layout { L_NONE, L_NVIDIA, L_HARNESS };
static const char samples[] = "samples_";

/* The harness' name of a built-in task. */
static const char *harness_name(const struct ruler_task *t, char out[48])
{
    const char *own = t->kind == K_NIAH ? t->name : t->kind == K_QA ? (t->dataset ? "ruler_qa_hotpot" : "ruler_qa_squad") : NULL;
    snprintf(out, 48, own ? "%s" : "ruler_%s", own ? own : t->name);
    return out;
}

static bool is_jsonl(const char *file)
{
    size_t n = strlen(file);
    return n > 6 && strcmp(file + n - 6, ".jsonl") == 0;
}

/* TASK.jsonl; *chunk: TASK-NUMBER.jsonl. */
static bool nvidia_file(const char *file, const struct ruler_task *t, bool *chunk)
{
    size_t n = strlen(t->name);
    *chunk = false;
    if (!is_jsonl(file) || strncmp(file, t->name, n) != 0)
        return false;
    file += n;
    if (*file == '-') {
        size_t digits = strspn(file + 1, "0123456789");
        *chunk = digits > 0;
        file += 1 + digits;
        if (!digits)
            return false;
    }
    return strcmp(file, ".jsonl") == 0;
}

/* samples_NAME_TIME.jsonl, samples_NAME.jsonl. */
static bool harness_file(const char *file, const struct ruler_task *t)
{
    char name[48];
    size_t n = strlen(harness_name(t, name));
    if (!is_jsonl(file) || strncmp(file, samples, sizeof samples - 1) != 0)
        return false;
    file += sizeof samples - 1;
    return strncmp(file, name, n) == 0 && (file[n] == '.' || (file[n] == '_' && file[n + 1] >= '0' && file[n + 1] <= '9'));
}

static enum layout layout_of(const struct names *in)
{
    bool chunk;
    for (size_t i = 0; i < in->n; i++) {
        for (size_t t = 0; t < ruler_n_tasks; t++) {
            if (harness_file(in->v[i], &ruler_tasks[t]))
                return L_HARNESS;
            if (nvidia_file(in->v[i], &ruler_tasks[t], &chunk))
                return L_NVIDIA;
        }
    }
    return L_NONE;
}

/* ---- records ---- */

struct foreign {
    struct score_reader r;
    enum layout layout;
    int64_t asked, length; /* length: of the records taken so far, 0 = none yet */
    struct list refs;      /* of the record in hand, where they had to be made */
};

/* One string of a Python list literal, p behind its opening quote; NULL = no literal. */
static const char *py_string(const char *p, char quote, struct str *out)
{
    while (*p && *p != quote) {
        if (*p != '\\') {
            str_putc(out, *p++);
            continue;
        }
        static const char from[] = "nrt\\'\"", to[] = "\n\r\t\\'\"";
        int digits = p[1] == 'x' ? 2 : p[1] == 'u' ? 4 : p[1] == 'U' ? 8 : 0;
        const char *at = p[1] ? strchr(from, p[1]) : NULL;
        if (at) {
            str_putc(out, to[at - from]);
            p += 2;
            continue;
        }
        uint32_t cp = 0;
        p += 2;
        for (int i = 0; i < digits; i++, p++) {
            int v = *p >= '0' && *p <= '9' ? *p - '0' : *p >= 'a' && *p <= 'f' ? *p - 'a' + 10 : -1;
            if (v < 0)
                return NULL;
            cp = cp << 4 | (uint32_t)v;
        }
        if (!digits || cp > 0x10ffff)
            return NULL;
        str_utf8(out, cp);
    }
    return *p ? p + 1 : NULL;
}

/* "['a', 'b']" as the harness' templates write a list of answers; other text is one answer. */
static int text_refs(struct foreign *f, const char *text, const char *refs[MAX_REFS], size_t *n, struct err *e)
{
    struct str s = STR_INIT;
    const char *p = text;
    int rc = 0;
    bool literal = *p == '[';
    list_clear(&f->refs);
    for (p++; literal && !rc && *p != ']';) {
        str_clear(&s);
        p += strspn(p, " ");
        const char *q = *p == '\'' || *p == '"' ? py_string(p + 1, *p, &s) : NULL;
        literal = q && f->refs.n < MAX_REFS;
        if (literal) {
            rc = gen_add(&f->refs, &s, e);
            p = q + strspn(q, " ");
            literal = *p == ',' || *p == ']';
            p += *p == ',';
        }
    }
    str_free(&s);
    if (!literal) {
        list_clear(&f->refs);
        rc = list_add(&f->refs, text, strlen(text), e);
    }
    for (size_t i = 0; i < f->refs.n; i++)
        refs[i] = f->refs.v[i];
    *n = f->refs.n;
    return rc;
}

static int any_refs(struct foreign *f, const json_t *v, const char *what, const char *refs[MAX_REFS], size_t *n, struct err *e)
{
    if (json_is_string(v))
        return text_refs(f, json_string_value(v), refs, n, e);
    if (!json_is_array(v))
        return ERR(e, E_INPUT, "%s: no list of reference answers ('outputs'%s)", what,
                   f->layout == L_HARNESS ? " of 'doc', or 'target'" : "");
    return refs_of(v, what, refs, n, e);
}

/* The text of a harness record: filtered_resps[0], else resps[0][0]. */
static const json_t *harness_pred(const json_t *rec)
{
    const json_t *v = json_array_get(json_object_get(rec, "filtered_resps"), 0);
    v = v ? v : json_array_get(json_object_get(rec, "resps"), 0);
    while (json_is_array(v))
        v = json_array_get(v, 0);
    return v;
}

static int prompt_sha(const json_t *input, const json_t *prefix, const char *const *refs, size_t n, char sha[65], struct err *e)
{
    struct str s = STR_INIT;
    if (json_is_string(input))
        str_printf(&s, "%s\n%s", json_string_value(input), json_is_string(prefix) ? json_string_value(prefix) : "");
    for (size_t i = 0; !json_is_string(input) && i < n; i++) /* a record without its prompt: by its answers */
        str_printf(&s, "%s\n", refs[i]);
    int rc = str_ok(&s, "a prompt", e);
    rc = rc ? rc : sha256_buf(str_c(&s), s.len, sha, e);
    str_free(&s);
    return rc;
}

/* Records of other lengths than the one asked for are passed over; of several, one must be chosen. */
static int length_of(struct foreign *f, const json_t *doc, const char *what, bool *take, struct err *e)
{
    const json_t *v = json_object_get(doc, "max_length");
    int64_t length = json_is_integer(v) ? (int64_t)json_integer_value(v) : 0;
    *take = !f->asked || length == f->asked;
    if (*take && f->length && length != f->length)
        return ERR(e, E_INPUT, "%s: samples of length %" PRId64 " and of length %" PRId64 "; choose one with --length", what, f->length,
                   length);
    if (*take)
        f->length = length;
    return 0;
}

static int record(void *ctx, int64_t line, const struct jdoc *d, struct err *e)
{
    struct foreign *f = ctx;
    const char *refs[MAX_REFS];
    char what[320], sha[65];
    size_t n;
    bool harness = f->layout == L_HARNESS, take = true;
    const json_t *doc = harness ? json_object_get(d->root, "doc") : d->root, *outputs = json_object_get(doc, "outputs");
    const json_t *pred = harness ? harness_pred(d->root) : json_object_get(d->root, "pred");
    snprintf(what, sizeof what, "%s: line %" PRId64, d->file, line + 1);
    if (harness)
        TRY(length_of(f, doc, what, &take, e));
    if (!take)
        return 0;
    if (!json_is_string(pred))
        return ERR(e, E_INPUT, "%s: no prediction (%s)", what, harness ? "'filtered_resps' or 'resps'" : "'pred'");
    TRY(any_refs(f, outputs || !harness ? outputs : json_object_get(d->root, "target"), what, refs, &n, e));
    TRY(prompt_sha(json_object_get(doc, "input"), json_object_get(doc, "gen_prefix"), refs, n, sha, e));
    return score_add(&f->r, json_string_value(pred), json_string_length(pred), refs, n, sha, NAN, 0, e);
}

/* ---- folders ---- */

/* The files of a task, in order; two of the harness, or a whole one beside chunks, are refused. */
static int read_files(struct foreign *f, const char *dir, const struct names *in, struct err *e)
{
    const struct ruler_task *t = f->r.t;
    const char *first = NULL;
    bool chunk, chunked = false;
    char path[1024];
    for (size_t i = 0; i < in->n; i++) {
        const char *file = in->v[i];
        chunk = false;
        if (f->layout == L_HARNESS ? !harness_file(file, t) : !nvidia_file(file, t, &chunk))
            continue;
        if (first && !(chunk && chunked))
            return ERR(e, E_INPUT, "'%s': two files of task '%s', '%s' and '%s'; leave one", dir, t->name, first, file);
        first = file;
        chunked = chunk;
        TRY(jsonl_each(path_join(path, dir, file), false, NULL, record, f, e));
    }
    return 0;
}

static int read_folder(const char *dir, const struct names *in, enum layout layout, int64_t length, struct ruler_scores *out,
                       char (*sha[RULER_MAX_TASKS])[65], struct err *e)
{
    int64_t seen = 0;
    for (size_t i = 0; i < ruler_n_tasks; i++) {
        struct foreign f = {.layout = layout, .asked = length, .length = seen};
        score_begin(&f.r, &ruler_tasks[i], out->flavour, &out->task[out->n]);
        int rc = read_files(&f, dir, in, e);
        list_free(&f.refs);
        seen = f.length;
        sha[out->n] = f.r.sha;
        if (rc || f.r.s->n) {
            out->n++;
            TRY(rc);
            TRY(score_end(&f.r, dir, e));
        } else
            *f.r.s = (struct ruler_task_score){0};
    }
    if (!out->n)
        return ERR(e, E_INPUT, "'%s': no prediction%s", dir, length ? " of this length" : "");
    for (size_t i = 0; i < in->n; i++) { /* what looks like a task and is none of ours must not vanish from a mean unseen */
        bool known = !is_jsonl(in->v[i]), chunk;
        for (size_t t = 0; t < ruler_n_tasks; t++)
            known |= layout == L_HARNESS ? harness_file(in->v[i], &ruler_tasks[t]) : nvidia_file(in->v[i], &ruler_tasks[t], &chunk);
        if (!known)
            log_warn("'%s/%s' is of no RULER task: left out", dir, in->v[i]);
    }
    return 0;
}

/* The only folder in dir that has predictions into sub. */
static int look_below(const char *dir, const struct names *in, char sub[1024], struct err *e)
{
    char path[1024];
    int found = 0;
    for (size_t i = 0; i < in->n; i++) {
        struct names below;
        if (!dir_exists(path_join(path, dir, in->v[i])))
            continue;
        TRY(dir_list(path, &below, e));
        if (layout_of(&below) != L_NONE && ++found == 1)
            snprintf(sub, 1024, "%s", path);
        else if (found > 1)
            snprintf(path, sizeof path, "%s", in->v[i]);
        names_free(&below);
        if (found > 1)
            return ERR(e, E_INPUT, "'%s': predictions in '%s' and in '%s'; name one of them", dir, path_base(sub), path);
    }
    return found ? 0
                 : ERR(e, E_INPUT,
                       "'%s': no predictions: neither ruler.json (dashlab ruler run) nor TASK.jsonl (NVIDIA's pred folders) nor "
                       "samples_TASK_*.jsonl (lm-evaluation-harness)",
                       dir);
}

int foreign_read(const char *dir, const char *flavour, int64_t length, struct ruler_scores *out, char (*sha[RULER_MAX_TASKS])[65],
                 struct err *e)
{
    struct names in;
    char sub[1024];
    TRY(dir_list(dir, &in, e));
    enum layout layout = layout_of(&in);
    int rc = 0;
    if (layout == L_NONE) {
        rc = look_below(dir, &in, sub, e);
        names_free(&in);
        TRY(rc);
        dir = sub;
        TRY(dir_list(dir, &in, e));
        layout = layout_of(&in);
    }
    if (length && layout != L_HARNESS)
        rc = ERR(e, E_USAGE, "'%s': a length is chosen among samples files of lm-evaluation-harness; NVIDIA's folders hold one", dir);
    snprintf(out->flavour, sizeof out->flavour, "%s", flavour ? flavour : layout == L_HARNESS ? "lm-eval" : "nvidia");
    rc = rc ? rc : read_folder(dir, &in, layout, length, out, sha, e);
    names_free(&in);
    return rc;
}
