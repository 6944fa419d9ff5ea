#include <stdlib.h>
#include <string.h>

#include "core/fs.h"
#include "core/hash.h"
#include "core/jread.h"
#include "core/pool.h"
#include "core/prog.h"
#include "ruler/gen.h"

static int by_dash(const void *a, const void *b)
{
    const char *x = *(char *const *)a, *y = *(char *const *)b;
    size_t i = 0;
    while (x[i] && x[i] == y[i])
        i++;
    int cx = x[i] ? (unsigned char)x[i] : '-', cy = y[i] ? (unsigned char)y[i] : '-';
    if (cx == cy) /* one ended where the other has a dash: the shorter comes first */
        return x[i] ? 1 : y[i] ? -1 : 0;
    return cx - cy;
}

/* Does b begin with a and a dash? */
static bool continues(const char *a, const char *b)
{
    size_t n = strlen(a);
    return strncmp(a, b, n) == 0 && b[n] == '-';
}

static int make_groups(struct ruler_res *r, struct err *e)
{
    qsort(r->adjs.v, r->adjs.n, sizeof *r->adjs.v, by_dash);
    r->groups = calloc(r->adjs.n + 1, sizeof *r->groups);
    if (!r->groups)
        return err_nomem(e, r->adjs.n * sizeof *r->groups, "word groups");
    struct str s = STR_INIT;
    int rc = 0;
    for (size_t i = 0; !rc && i < r->adjs.n;) {
        struct word_group *g = &r->groups[r->n_groups++];
        g->first_adj = i;
        size_t j = i + 1;
        while (j < r->adjs.n && continues(r->adjs.v[i], r->adjs.v[j]))
            j++;
        g->n_adj = j - i;
        for (size_t a = i; !rc && g->n_adj > 1 && a < j; a++) {
            for (size_t k = 0; !rc && k < r->nouns.n; k++) {
                str_clear(&s);
                str_printf(&s, "%s-%s", r->adjs.v[a], r->nouns.v[k]);
                rc = list_add(&g->merged, str_c(&s), s.len, e);
            }
        }
        list_sort_unique(&g->merged);
        if (!rc && g->n_adj > 1 && g->merged.n != g->n_adj * r->nouns.n)
            rc = ERR(e, E_INPUT, "word lists: a pair of '%s' can be read in two ways; the list of pairs would have duplicates",
                     r->adjs.v[i]);
        i = j;
    }
    str_free(&s);
    return rc;
}

int64_t ruler_words_count(const struct ruler_res *r)
{
    return (int64_t)(r->adjs.n * r->nouns.n);
}

void ruler_word(const struct ruler_res *r, int64_t i, struct str *out)
{
    size_t block = (size_t)i / r->nouns.n, lo = 0, hi = r->n_groups;
    while (hi - lo > 1) {
        size_t mid = (lo + hi) / 2;
        if (r->groups[mid].first_adj <= block)
            lo = mid;
        else
            hi = mid;
    }
    const struct word_group *g = &r->groups[lo];
    if (g->n_adj > 1)
        str_puts(out, g->merged.v[(size_t)i - g->first_adj * r->nouns.n]);
    else {
        str_puts(out, r->adjs.v[block]);
        str_putc(out, '-');
        str_puts(out, r->nouns.v[(size_t)i % r->nouns.n]);
    }
}

static int load_words(struct ruler_res *r, const char *data_dir, const char *version, struct err *e)
{
    char dir[1024], path[1024], name[64];
    struct list verbs = {0};
    snprintf(name, sizeof name, "wonderwords-%s", version);
    path_join(dir, data_dir, name);
    if (!dir_exists(dir))
        return ERR(e, E_INPUT, "word lists of wonderwords '%s': no folder '%s'; there are 2.2.0 and 3.0.0", version, dir);
    int rc = list_load(&r->adjs, path_join(path, dir, "adjectivelist.txt"), true, e);
    rc = rc ? rc : sha256_file(path, r->adjs_sha, e);
    rc = rc ? rc : list_load(&verbs, path_join(path, dir, "verblist.txt"), true, e);
    rc = rc ? rc : sha256_file(path, r->verbs_sha, e);
    rc = rc ? rc : list_load(&r->nouns, path_join(path, dir, "nounlist.txt"), true, e);
    rc = rc ? rc : sha256_file(path, r->nouns_sha, e);
    const struct list *all[3] = {&r->nouns, &r->adjs, &verbs};
    for (int k = 0; k < 3; k++)
        for (size_t i = 0; !rc && i < all[k]->n; i++)
            rc = list_add(&r->cwe, all[k]->v[i], strlen(all[k]->v[i]), e);
    list_free(&verbs);
    list_sort_unique(&r->adjs);
    list_sort_unique(&r->nouns);
    list_sort_unique(&r->cwe);
    if (!rc && (!r->adjs.n || !r->nouns.n || r->cwe.n < 50))
        rc = ERR(e, E_INPUT, "word lists in '%s': %zu adjectives, %zu nouns: empty or cut off", dir, r->adjs.n, r->nouns.n);
    return rc ? rc : make_groups(r, e);
}

static int load_english(struct ruler_res *r, const char *path, struct err *e)
{
    struct jdoc d = {0};
    const char *key;
    json_t *v;
    int rc = ruler_not_html(path, e);
    rc = rc ? rc : sha256_file(path, r->words_sha, e);
    rc = rc ? rc : jdoc_load(&d, path, 64u << 20, e);
    if (!rc && !json_is_object(d.root))
        rc = ERR(e, E_INPUT, "'%s': expected a JSON object whose values are words", path);
    if (!rc) {
        json_object_foreach(d.root, key, v)
        {
            if (!rc && !json_is_string(v))
                rc = ERR(e, E_INPUT, "'%s': the value of '%s' is not a string", path, key);
            rc = rc ? rc : list_add(&r->english, json_string_value(v), json_string_length(v), e);
        }
    }
    jdoc_free(&d);
    return rc;
}

/* A file's text behind *all; sha is the file's. */
static int essay_file(struct str *all, const char *path, char sha[65], struct err *e)
{
    struct str raw = STR_INIT;
    size_t n = strlen(path);
    struct jdoc d = {0};
    int rc = sha256_file(path, sha, e);
    if (!rc && n > 5 && strcmp(path + n - 5, ".json") == 0) {
        const char *z;
        rc = ruler_not_html(path, e);
        rc = rc ? rc : jdoc_load(&d, path, 64u << 20, e);
        rc = rc ? rc : jget_str(&d, d.root, "", "text", &z, e);
        if (!rc)
            str_puts(all, z);
        jdoc_free(&d);
        return rc;
    }
    rc = rc ? rc : text_load(path, 64u << 20, &raw, e);
    bool bad = false;
    int len;
    for (size_t i = 0; !rc && i < raw.len; i += (size_t)len) {
        len = 1;
        if (raw.p[i] > 0 && raw.p[i] <= '~')
            continue;
        uint32_t cp = utf8_next(raw.p + i, raw.len - i, &len, &bad);
        if (bad || !cp)
            rc = ERR(e, E_INPUT, "'%s': byte %zu is %s, expected a text in UTF-8", path, i, bad ? "not UTF-8" : "a zero byte");
    }
    if (!rc)
        str_add(all, str_c(&raw), raw.len);
    str_free(&raw);
    return rc;
}

/* The texts of a folder, READMEs and hidden files left out, in the order of their names, and one hash for all. */
static int essay_folder(struct str *all, const char *dir, char sha[65], struct err *e)
{
    struct names names;
    struct str sums = STR_INIT;
    char path[1024];
    TRY(dir_list(dir, &names, e));
    int rc = 0;
    for (size_t i = 0; !rc && i < names.n; i++) {
        if (names.v[i][0] == '.' || strncmp(names.v[i], "README", 6) == 0)
            continue;
        if (strlen(dir) + strlen(names.v[i]) + 2 > sizeof path) {
            rc = ERR(e, E_INPUT, "'%s' in '%s': a path of more than %zu bytes", names.v[i], dir, sizeof path - 1);
            break;
        }
        if (dir_exists(path_join(path, dir, names.v[i])))
            continue;
        if (all->len)
            str_putc(all, '\n');
        rc = essay_file(all, path, sha, e);
        str_printf(&sums, "%s  %s\n", sha, names.v[i]); /* as sha256sum prints it */
    }
    names_free(&names);
    rc = rc ? rc : str_ok(&sums, "essay", e);
    rc = rc ? rc : sha256_buf(str_c(&sums), sums.len, sha, e);
    str_free(&sums);
    return rc;
}

static int load_essay(struct ruler_res *r, const char *path, struct err *e)
{
    struct str raw = STR_INIT;
    bool dir = dir_exists(path);
    int rc = (dir ? essay_folder : essay_file)(&raw, path, r->essay_sha, e);
    rc = rc ? rc : str_ok(&raw, "essay", e);
    if (!rc)
        squeeze(&r->essay, str_c(&raw), raw.len);
    str_free(&raw);
    rc = rc ? rc : str_ok(&r->essay, "essay", e);
    if (rc)
        return rc;
    size_t words = 1;
    for (size_t i = 0; i < r->essay.len; i++)
        words += r->essay.p[i] == ' ';
    if (!r->essay.len || (r->essay.len == 1 && r->essay.p[0] == ' '))
        return ERR(e, E_INPUT, "'%s': the %s holds no text", path, dir ? "folder" : "file");
    if (words < 2)
        return ERR(e, E_INPUT, "'%s': one word, expected a long text", path);
    r->word_end = malloc(words * sizeof *r->word_end);
    if (!r->word_end)
        return err_nomem(e, words * sizeof *r->word_end, "essay");
    for (size_t i = 0; i <= r->essay.len; i++)
        if (i == r->essay.len || r->essay.p[i] == ' ')
            r->word_end[r->n_words++] = i;
    return 0;
}

/* The parameters, and one hash for their four files. */
static int load_punkt(struct ruler_res *r, const char *data_dir, struct err *e)
{
    static const char *const file[] = {"abbrev_types.txt", "collocations.tab", "sent_starters.txt", "ortho_context.tab"};
    char dir[1024], path[1024], sha[65];
    struct str all = STR_INIT;
    TRY(punkt_load(&r->punkt, path_join(dir, data_dir, "punkt_english"), e));
    int rc = 0;
    for (size_t i = 0; !rc && i < ARRAY_LEN(file); i++) {
        rc = sha256_file(path_join(path, dir, file[i]), sha, e);
        str_printf(&all, "%s  %s\n", sha, file[i]); /* as sha256sum prints it */
    }
    rc = rc ? rc : sha256_buf(str_c(&all), all.len, r->punkt_sha, e);
    str_free(&all);
    return rc;
}

/* Needles go between sentences: a text without any is no haystack. */
static int find_sentences(const struct ruler_res *r, const char *path, struct err *e)
{
    size_t n = 0;
    for (size_t words = MIN(r->n_words, (size_t)2000); n < 2; words = r->n_words) {
        struct span *s = NULL;
        TRY(punkt_split(r->punkt, r->essay.p, r->word_end[words - 1], &s, &n, e));
        free(s);
        if (words == r->n_words)
            break;
    }
    return n < 2 ? ERR(e, E_INPUT, "'%s': %zu words without the end of a sentence; needles are put between sentences", path, r->n_words)
                 : 0;
}

/* The words that the essay's sentences begin with. */
static int mark_sentences(struct ruler_res *r, struct err *e)
{
    struct span *s = NULL;
    size_t n, word = 0;
    TRY(punkt_split(r->punkt, r->essay.p, r->essay.len, &s, &n, e));
    r->sentence = malloc((n + 1) * sizeof *r->sentence);
    for (size_t i = 0; r->sentence && i < n; i++) {
        while (r->word_end[word] <= s[i].from)
            word++;
        if (!i || r->sentence[r->n_sentences - 1] != word)
            r->sentence[r->n_sentences++] = word;
    }
    free(s);
    return r->sentence ? 0 : err_nomem(e, n * sizeof *r->sentence, "sentences");
}

int ruler_not_html(const char *path, struct err *e)
{
    struct file_map m;
    TRY(map_open(&m, path, e));
    size_t i = m.len >= 3 && memcmp(m.p, "\xef\xbb\xbf", 3) == 0 ? 3 : 0;
    while (i < m.len && (m.p[i] == ' ' || (m.p[i] >= 9 && m.p[i] <= 13)))
        i++;
    bool html = i < m.len && m.p[i] == '<', empty = i == m.len;
    map_close(&m);
    if (empty)
        return ERR(e, E_INPUT, "'%s': the file is empty", path);
    return html ? ERR(e, E_INPUT, "'%s': an HTML page, not JSON; the download seems to have failed", path) : 0;
}

/* What is read side by side, in the order in which errors are reported. */
enum part { ALSO, WORDS, ESSAY, PUNKT, ENGLISH, QA_1, QA_2, PARTS };
struct reading {
    struct ruler_res *r;
    const struct ruler_sources *s;
    const char *essay; /* its path */
    int rc[PARTS];
    struct err err[PARTS];
};

static int read_part(const struct reading *x, enum part part, struct err *e)
{
    const struct ruler_sources *s = x->s;
    switch (part) {
    case ALSO:
        return s->also ? s->also(s->also_ctx, e) : 0;
    case WORDS:
        return load_words(x->r, s->data_dir, s->wonderwords ? s->wonderwords : "2.2.0", e);
    case ESSAY:
        return load_essay(x->r, x->essay, e);
    case PUNKT:
        return load_punkt(x->r, s->data_dir, e);
    case ENGLISH:
        return s->words ? load_english(x->r, s->words, e) : 0;
    case QA_1:
        return s->qa[0] ? ruler_qa_load(x->r, 0, s->qa[0], e) : 0;
    case QA_2:
        return s->qa[1] ? ruler_qa_load(x->r, 1, s->qa[1], e) : 0;
    case PARTS:
        break;
    }
    BUG("part %d", (int)part);
}

static void read_item(void *ctx, int64_t i, int worker)
{
    static const enum part longest_first[PARTS] = {QA_2, ALSO, QA_1, WORDS, ESSAY, ENGLISH, PUNKT};
    struct reading *x = ctx;
    enum part part = longest_first[i];
    UNUSED(worker);
    x->rc[part] = read_part(x, part, &x->err[part]);
}

int ruler_res_load(struct ruler_res *r, const struct ruler_sources *s, struct err *e)
{
    char path[1024];
    struct reading x = {.r = r, .s = s, .essay = s->essays ? s->essays : path_join(path, s->data_dir, "essay.txt.zst")};
    pool_run(s->pool, PARTS, read_item, &x);
    for (int i = 0; i < PARTS; i++)
        if (x.rc[i]) {
            *e = x.err[i];
            return -1;
        }
    TRY(find_sentences(r, x.essay, e));
    return s->sentences ? mark_sentences(r, e) : 0;
}

void ruler_res_free(struct ruler_res *r)
{
    for (size_t i = 0; i < r->n_groups; i++)
        list_free(&r->groups[i].merged);
    free(r->groups);
    list_free(&r->nouns);
    list_free(&r->adjs);
    list_free(&r->cwe);
    str_free(&r->essay);
    free(r->word_end);
    free(r->sentence);
    punkt_free(r->punkt);
    list_free(&r->english);
    for (size_t i = 0; i < ARRAY_LEN(r->qa); i++)
        ruler_qa_free(&r->qa[i]);
    *r = (struct ruler_res){0};
}

void splits_free(struct splits *s)
{
    for (size_t i = 0; i < ARRAY_LEN(s->v); i++) {
        str_free(&s->v[i].text);
        free(s->v[i].s);
    }
    *s = (struct splits){0};
}

int ruler_essay(const struct ruler_res *r, struct splits *s, size_t first, int64_t n, const struct split_cache **out, struct err *e)
{
    for (size_t i = 0; i < ARRAY_LEN(s->v); i++) {
        if (s->v[i].n == n && s->v[i].first == first) {
            *out = &s->v[i];
            return 0;
        }
    }
    struct split_cache *c = &s->v[s->next++ % (int)ARRAY_LEN(s->v)];
    c->n = 0;
    free(c->s);
    c->s = NULL;
    str_clear(&c->text);
    for (size_t left = (size_t)n, at = first; left; at = 0) {
        size_t take = MIN(left, r->n_words - at), from = at ? r->word_end[at - 1] + 1 : 0;
        if (c->text.len || left != (size_t)n)
            str_putc(&c->text, ' ');
        str_add(&c->text, r->essay.p + from, r->word_end[at + take - 1] - from);
        left -= take;
    }
    const char *p = str_c(&c->text);
    size_t a = 0, b = c->text.len;
    while (a < b && p[a] == ' ')
        a++;
    while (b > a && p[b - 1] == ' ')
        b--;
    memmove(c->text.p, p + a, b - a);
    c->text.len = b - a;
    c->text.p[c->text.len] = 0;
    TRY(str_ok(&c->text, "haystack", e));
    double t = now_s();
    TRY(punkt_split(r->punkt, c->text.p, c->text.len, &c->s, &c->n_s, e));
    s->seconds += now_s() - t;
    s->made++;
    c->n = n;
    c->first = first;
    *out = c;
    return 0;
}
