/* Selectors without a model: SMART's programme, HALO's score, rank averaging, Uniform's rule, probe generators and their rules,
 * published sets, bad input. Hand-computed cases, brute force, independent parsing. */
#include <math.h>

#include "baselines/ar.h"
#include "baselines/avg.h"
#include "baselines/halo.h"
#include "baselines/smart.h"
#include "core/fs.h"
#include "core/rng.h"
#include "tests/test.h"

#define SETS "baselines/index_sets.tsv"
enum { COLS = 9 };

/* ---- published sets ---- */

/* Calls fn for every row of the table; index[n] holds its set as written. */
static void each_set(void (*fn)(char *col[COLS], const int *index, int n))
{
    struct str s = STR_INIT;
    int rows = 0;
    CHECK_OK(file_read(SETS, 1 << 20, &s, e));
    for (char *line = strtok(s.p, "\n"); line; line = strtok(NULL, "\n"), rows++) {
        char *col[COLS] = {0};
        int index[64], n = 0;
        for (int i = 0; i < COLS && line; i++) {
            char *tab = strchr(line, '\t');
            col[i] = line;
            if (tab)
                *tab = 0;
            line = tab ? tab + 1 : NULL;
        }
        if (!rows || !col[6])
            continue;
        for (char *p = col[6]; *p && n < 64; p += *p == ',')
            index[n++] = (int)strtol(p, &p, 10);
        fn(col, index, n);
    }
    CHECK(rows > 100);
    str_free(&s);
}

static int cmp_int(const void *a, const void *b)
{
    return *(const int *)a - *(const int *)b;
}

static int smart_rows, uniform_rows;
static void smart_row(char *col[COLS], const int *index, int n)
{
    int L = atoi(col[1]), block = L / n, set[64], again[64];
    double s[MAX_LAYERS] = {0};
    if (strcmp(col[3], "smart") && !strstr(col[0], "Zebra"))
        return;
    if (n < 3)
        return;
    smart_rows++;
    memcpy(set, index, sizeof *set * (size_t)n);
    qsort(set, (size_t)n, sizeof *set, cmp_int);
    int inner = set[n - 1] - set[0] - (n - 1), lo = inner / (n - 1), hi = lo + (inner % (n - 1) != 0);
    CHECK(set[0] < block && set[n - 1] >= L - block);
    for (int i = 1; i < n; i++) {
        int gap = set[i] - set[i - 1] - 1;
        CHECK(gap == lo || gap == hi);
        s[set[i]] = 1;
    }
    s[set[0]] = 1;
    CHECK_OK(smart_place(s, L, n, NULL, again, e)); /* with its own layers as the sensitive ones the set comes out again */
    CHECK(!memcmp(again, set, sizeof *set * (size_t)n));
}

static void uniform_row(char *col[COLS], const int *index, int n)
{
    struct select_input in = {.layers = atoi(col[1]), .budget = n};
    struct selection out;
    if (strcmp(col[3], "uniform") || strncmp(col[0], "Qwen2.5-3B", 10))
        return;
    uniform_rows++;
    CHECK_OK(selector_run(&sel_uniform, &in, &out, e));
    for (int l = 0; l < in.layers; l++) {
        bool kept = false;
        for (int i = 0; i < n; i++)
            kept = kept || index[i] == l;
        CHECK_EQ_I(out.kind[l] == MIX_FULL, kept);
    }
}

/* ---- SMART ---- */

struct best {
    double sum;
    int set[16];
    bool have;
};
/* All placements with gaps lo or hi, smaller ones first; the first of equal sums stays. */
static void enumerate(const double *s, int n, int last, int lo, int hi, int *set, int k, struct best *b)
{
    if (k == n) {
        double sum = 0;
        for (int i = n - 1; i >= 0; i--)
            sum = s[set[i]] + (i == n - 1 ? 0 : sum);
        if (set[n - 1] == last && (!b->have || sum > b->sum)) {
            b->have = true;
            b->sum = sum;
            memcpy(b->set, set, sizeof *set * (size_t)n);
        }
        return;
    }
    for (int gap = lo; gap <= hi; gap++) {
        set[k] = set[k - 1] + gap + 1;
        if (set[k] <= last)
            enumerate(s, n, last, lo, hi, set, k + 1, b);
    }
}

static void test_smart(void)
{
    int got[16], tried = 0;
    for (int L = 3; L <= 14; L++)
        for (int n = 3; n <= L; n++)
            for (int seed = 0; seed < 8; seed++) {
                double s[14];
                int first = 0, last = L - L / n, set[16];
                struct best b = {0};
                for (int l = 0; l < L; l++) /* odd seeds: small integers, so that many placements tie */
                    s[l] = seed % 2 ? (double)ctr_below((uint64_t)seed, (uint64_t)n, (uint64_t)l, 3)
                        : ctr_uniform((uint64_t)seed, (uint64_t)n, (uint64_t)l) - 0.3;
                for (int l = 0; l < L / n; l++)
                    first = s[l] > s[first] ? l : first;
                for (int l = L - L / n; l < L; l++)
                    last = s[l] > s[last] ? l : last;
                int inner = last - first - (n - 1);
                set[0] = first;
                enumerate(s, n, last, inner / (n - 1), inner / (n - 1) + (inner % (n - 1) != 0), set, 1, &b);
                CHECK(b.have);
                CHECK_OK(smart_place(s, L, n, NULL, got, e));
                CHECK(!memcmp(got, b.set, sizeof *got * (size_t)n));
                tried++;
            }
    printf("%d placements against enumeration\n", tried);
    static const double s[8] = {0.1, 0.9, 0.2, 0.3, 0.8, 0.3, 0.7, 0.6};
    static const bool not6[8] = {[6] = true}, back[8] = {[6] = true, [7] = true};
    CHECK_OK(smart_place(s, 8, 1, NULL, got, e)); /* argmax */
    CHECK_EQ_I(got[0], 1);
    CHECK_OK(smart_place(s, 8, 2, NULL, got, e)); /* first of 0..3, last of 4..7 */
    CHECK(got[0] == 1 && got[1] == 4);
    // first 1 of 0..1, last 6 of 6..7, x = (5-2)/2: gaps 1 or 2: 1,3,6 (0.3) or 1,4,6 (0.8)
    CHECK_OK(smart_place(s, 8, 3, NULL, got, e));
    CHECK(got[0] == 1 && got[1] == 4 && got[2] == 6);
    CHECK_OK(smart_place(s, 8, 3, not6, got, e));
    CHECK_EQ_I(got[2], 7);
    CHECK_ERR(smart_place(s, 8, 3, back, got, e), E_USAGE, "every one of the last 2 layers is excluded");
    CHECK_ERR(smart_place(s, 8, 9, NULL, got, e), E_USAGE, "9 of 8");
}

/* ---- HALO, averages ---- */

static void test_halo(void)
{
    /* max R = 0.9, max C = 0.6. Layer 0: 0.8/0.3; 1: the best C: 0.4/1e-6, clipped; 2: the best R: 0; 3: best of both: 0/eps = 0 */
    static const double R[4] = {0.1, 0.5, 0.9, 0.9}, C[4] = {0.3, 0.6, 0.5, 0.6};
    double got[4], want[4] = {(0.9 - 0.1) / (0.6 - 0.3 + 1e-6), 50, 0, 0};
    halo_scores(R, C, 4, got);
    check_close_f64("halo scores", got, want, 4, 0, 1e-15, "the same three operations; a compiler may not reorder them");
}

static void test_average(void)
{
    /* GA order 0,2,1,3,4 (ranks 0,2,1,3,4); GR order 3,1,0,2,4 (ranks 2,1,3,0,4). Means 1, 1.5, 2, 1.5, 4: layers 1 and 3 tie, GA ranks
     * 2 and 3 */
    struct selection ga = {.method = "ga-s1", .layers = 5, .score = {9, 5, 7, 2, 1}, .has_score = true, .tokens = 10, .flops_forward = 3},
        gr = ga, out;
    static const double score[5] = {0.3, 0.5, 0.1, 0.9, -2}, want[5] = {1, 1.5, 2, 1.5, 4};
    double mean[MAX_LAYERS];
    int order[MAX_LAYERS];
    snprintf(gr.method, sizeof gr.method, "gr-s1");
    memcpy(gr.score, score, sizeof score);
    avg_ranks(&ga, &gr, mean, order);
    for (int l = 0; l < 5; l++)
        CHECK(mean[l] == want[l]);
    CHECK(order[0] == 0 && order[1] == 1 && order[2] == 3 && order[3] == 2 && order[4] == 4);
    struct select_input in = {.layers = 5, .budget = 2, .first = &ga, .second = &gr};
    CHECK_OK(selector_run(&sel_avg_s1, &in, &out, e));
    CHECK(out.kind[0] == MIX_FULL && out.kind[1] == MIX_FULL && out.kind[3] == MIX_GDN && out.ties_at_cut == 1 && out.tokens == 20 &&
          out.flops_forward == 6);
    /* equal means that the index would order the other way: GA ranks 1 and 0 for layers 0 and 1, GR 0 and 1 */
    struct selection a = {.method = "ga-s2", .layers = 3, .score = {1, 2, 0}, .has_score = true},
        b = {.method = "gr-s2", .layers = 3, .score = {2, 1, 0}, .has_score = true};
    avg_ranks(&a, &b, mean, order);
    CHECK(order[0] == 1 && order[1] == 0);
    in.layers = 3;
    in.budget = 1;
    CHECK_ERR(selector_run(&sel_avg_s2, &in, &out, e), E_USAGE, "--first is a run of method 'ga-s1'");
    in.first = NULL;
    CHECK_ERR(selector_run(&sel_avg_s2, &in, &out, e), E_USAGE, "needs --first");
    in.first = &a;
    in.second = &b;
    CHECK_OK(selector_run(&sel_avg_s2, &in, &out, e));
    CHECK(out.kind[1] == MIX_FULL && out.ties_at_cut == 1);
    a.layers = 4;
    CHECK_ERR(selector_run(&sel_avg_s2, &in, &out, e), E_USAGE, "4 layers");
    int order4[MAX_LAYERS];
    struct selection s = {.layers = 6, .score = {1, 3, 3, -0.5, 3, 1}};
    selection_order(&s, order4);
    CHECK(order4[0] == 1 && order4[1] == 2 && order4[2] == 4 && order4[3] == 0 && order4[4] == 5 && order4[5] == 3);
}

/* ---- probes: generators read back independently ---- */

struct entry {
    char key[32], value[32];
};
/* "key: value" or "key:value" lines between the first line and the last. */
static int read_pairs(const char *text, struct entry *out, int cap)
{
    int n = 0;
    for (const char *p = strchr(text, '\n') + 1, *nl; (nl = strchr(p, '\n')) && n < cap; p = nl + 1) {
        const char *colon = memchr(p, ':', (size_t)(nl - p));
        CHECK(colon != NULL);
        if (!colon)
            return n;
        snprintf(out[n].key, sizeof out[n].key, "%.*s", (int)(colon - p), p);
        colon += 1 + (colon[1] == ' ');
        snprintf(out[n].value, sizeof out[n].value, "%.*s", (int)(nl - colon), colon);
        n++;
    }
    return n;
}

static const struct entry *find(const struct entry *v, int n, const char *key)
{
    const struct entry *hit = NULL;
    for (int i = 0; i < n; i++)
        if (!strcmp(v[i].key, key)) {
            CHECK(!hit); /* keys are distinct */
            hit = &v[i];
        }
    CHECK(hit != NULL);
    return hit;
}

static void check_kv(const char *text, const struct probe_prompt *p)
{
    struct entry v[64];
    int n = read_pairs(text, v, 64);
    char word[32] = "";
    CHECK_EQ_I(n, 50);
    CHECK_EQ_I(sscanf(strrchr(text, '\n') + 1, "The value of the word \"%31[a-z]\" is", word), 1);
    for (int i = 0; i < n; i++) {
        find(v, n, v[i].key);
        CHECK(atoi(v[i].value) >= 0 && atoi(v[i].value) <= 100);
    }
    const struct entry *hit = find(v, n, word);
    CHECK(p->refs.n == 1);
    if (hit)
        CHECK_STR(p->refs.v[0], hit->value);
}

/* Follows aliases by name; *hops counts them. */
static int resolve(const struct entry *v, int n, const char *key, int *hops)
{
    *hops = 0;
    for (const struct entry *at = find(v, n, key); at && *hops < 10; at = find(v, n, at->value), ++*hops)
        if (at->value[0] >= '0' && at->value[0] <= '9')
            return atoi(at->value);
    return -1000;
}

static int ar_text(const char *text, const struct probe_prompt *p, int *deepest)
{
    struct entry v[64];
    int n = read_pairs(text, v, 64), sum = 0, hops, aliases = 0;
    char key[3][32], want[16];
    CHECK_EQ_I(n, 50);
    const char *q = strstr(strrchr(text, '\n'), "The value of ");
    CHECK_EQ_I(sscanf(q, "The value of %31s + %31s + %31s is", key[0], key[1], key[2]), 3);
    CHECK(strcmp(key[0], key[1]) && strcmp(key[1], key[2]) && strcmp(key[0], key[2]));
    *deepest = 0;
    for (int i = 0; i < n; i++) {
        int value = resolve(v, n, v[i].key, &hops);
        CHECK(value >= 0 && value <= 9);
        *deepest = MAX(*deepest, hops);
    }
    for (int i = 0; i < 3; i++) {
        sum += resolve(v, n, key[i], &hops);
        aliases += hops > 0;
    }
    snprintf(want, sizeof want, "%d", sum);
    CHECK(p->refs.n == 1);
    CHECK_STR(p->refs.v[0], want);
    return aliases;
}

static void check_ar(const char *text, const struct probe_prompt *p)
{
    int deepest;
    CHECK_EQ_I(ar_text(text, p, &deepest), 0);
    CHECK_EQ_I(deepest, 0);
}

static void check_ar_mh(const char *text, const struct probe_prompt *p)
{
    int deepest;
    CHECK(ar_text(text, p, &deepest) >= 1); /* an alias is asked for */
    CHECK_EQ_I(deepest, 2);                 /* never deeper, and once at least */
    CHECK(strstr(text, "Only return the final value") != NULL);
}

static void check_vt(const char *text, const struct probe_prompt *p)
{
    struct entry var[16];
    int n = 0, items = 0, noise = 0, asked = 0, holds = 0;
    char line[2048];
    snprintf(line, sizeof line, "%.*s", (int)strcspn(text, "\n"), text);
    CHECK_EQ_I(sscanf(strchr(text, '\n'), "\nQuestion: which variables have the value %d,", &asked), 1);
    for (char *at = line, *next; at; at = next) {
        next = strstr(at, " ... ");
        if (next) {
            *next = 0;
            next += 5;
        }
        items++;
        if (strspn(at, ".") == strlen(at))
            noise++;
        else {
            CHECK_EQ_I(sscanf(at, "VAR %31s = %31s", var[n].key, var[n].value), 2);
            noise += var[n].key[0] >= 'Q' && var[n].key[0] <= 'W';
            n++;
        }
    }
    CHECK_EQ_I(items, 12);
    CHECK_EQ_I(noise, 6);
    for (int i = 0; i < n; i++) { /* what each variable holds, by following names */
        const char *value = var[i].value;
        for (int hops = 0; value[0] > '9' && hops < 5; hops++)
            for (int k = 0; k < n; k++)
                if (!strcmp(var[k].key, value)) {
                    value = var[k].value;
                    break;
                }
        CHECK_EQ_I(strlen(value), 5);
        if (atoi(value) != asked)
            continue;
        bool listed = false;
        for (size_t k = 0; k < p->refs.n; k++)
            listed = listed || !strcmp(p->refs.v[k], var[i].key);
        CHECK(listed);
        holds++;
    }
    CHECK(holds == 3 && p->refs.n == 3);
}

static void check_cwe(const char *text, const struct probe_prompt *p)
{
    struct {
        char word[16];
        int n;
    } seen[128];
    int n = 0, total = 0, twice = 0;
    for (const char *at = strchr(text, '\n') + 1; *at >= '0' && *at <= '9'; total++) {
        char word[16];
        int number, used, k = 0;
        CHECK_EQ_I(sscanf(at, "%d. %15[a-z0-9]%n", &number, word, &used), 2);
        CHECK_EQ_I(number, total + 1);
        CHECK(word[0] == word[1] && (!word[2] || (word[2] >= '1' && word[2] <= '4' && !word[3])));
        at += used + 1;
        while (k < n && strcmp(seen[k].word, word))
            k++;
        if (k == n) {
            snprintf(seen[n].word, sizeof seen[n].word, "%s", word);
            seen[n++].n = 0;
        }
        seen[k].n++;
    }
    CHECK(total == 120 && n == 110 && p->listed.n == 110 && p->refs.n == 10);
    for (int k = 0; k < n; k++) {
        bool common = false;
        for (size_t i = 0; i < p->refs.n; i++)
            common = common || !strcmp(p->refs.v[i], seen[k].word);
        CHECK_EQ_I(seen[k].n, common ? 2 : 1);
        twice += common;
    }
    CHECK_EQ_I(twice, 10);
}

static void test_generators(void)
{
    static const struct {
        const struct probe *p;
        void (*check)(const char *text, const struct probe_prompt *p);
    } all[] = {{&probe_kv, check_kv}, {&probe_ar, check_ar}, {&probe_ar_mh, check_ar_mh}, {&probe_vt, check_vt}, {&probe_cwe, check_cwe}};
    for (size_t i = 0; i < ARRAY_LEN(all); i++) {
        struct probe_gen g = {.seed = 11, .stream = all[i].p->stream};
        struct str first = STR_INIT;
        for (int k = 0; k < 80; k++) {
            char w[16];
            snprintf(w, sizeof w, "word%c%c", 'a' + k % 26, 'a' + k / 26);
            CHECK_OK(list_add(&g.words, w, strlen(w), e));
            CHECK_OK(list_add(&g.keys, w, strlen(w), e));
        }
        for (int k = 0; k < 40; k++) {
            struct probe_prompt p = {.probe = all[i].p}, again = {.probe = all[i].p};
            struct str text = STR_INIT, same = STR_INIT;
            struct probe_gen copy = g;
            CHECK_OK(all[i].p->make(&g, &text, &p, e));
            CHECK_OK(all[i].p->make(&copy, &same, &again, e));
            CHECK_STR(str_c(&same), str_c(&text)); /* a function of seed and draw number */
            all[i].check(str_c(&text), &p);
            if (!k)
                str_puts(&first, str_c(&text));
            else
                CHECK(strcmp(str_c(&first), str_c(&text)));
            list_free(&p.refs);
            list_free(&p.listed);
            list_free(&again.refs);
            list_free(&again.listed);
            str_free(&text);
            str_free(&same);
        }
        str_free(&first);
        list_free(&g.words);
        list_free(&g.keys);
    }
    struct probe_gen few = {.seed = 1};
    struct probe_prompt p = {0};
    struct str text = STR_INIT;
    CHECK_ERR(probe_kv.make(&few, &text, &p, e), E_INPUT, "50 are needed");
    CHECK_ERR(probe_ar.make(&few, &text, &p, e), E_INPUT, "50 are needed");
    str_free(&text);
}

/* No alias at all, or none of depth 2: two keys are rewired; the result is a forest of depth 2. Many seeds, so both branches are met. */
static void test_aliases(void)
{
    int aliases = 0, deep = 0;
    for (uint64_t seed = 0; seed < 500; seed++) {
        struct probe_gen g = {.seed = seed, .stream = 1};
        struct ar_mh_pairs p;
        int deepest = 0;
        ar_mh_draw(&g, &p);
        for (int i = 0; i < AR_PAIRS; i++) {
            int hops = 0, at = i;
            for (; p.alias[at] >= 0 && hops < 5; hops++)
                at = p.alias[at];
            CHECK_EQ_I(hops, p.depth[i]);
            CHECK_EQ_I(ar_mh_value(&p, i), p.value[at]);
            deepest = MAX(deepest, hops);
            aliases += hops > 0;
            deep += hops == 2;
        }
        CHECK_EQ_I(deepest, 2);
    }
    printf("%.3f of the keys are aliases (0.4 drawn, none for the first key), %.3f of depth 2\n", aliases / (500.0 * AR_PAIRS),
           deep / (500.0 * AR_PAIRS));
    CHECK(aliases > 0.37 * 500 * AR_PAIRS && aliases < 0.42 * 500 * AR_PAIRS); /* 0.4 * 49/50 = 0.392, standard deviation 0.003 */
}

static bool is_right(const struct probe *p, const struct probe_prompt *q, const char *text)
{
    return p->right(q, text, strlen(text)) == 1;
}

static void test_rules(void)
{
    struct probe_prompt v = {0}, s = {0}, x = {0}, c = {0};
    CHECK_OK(list_add(&v.refs, "42", 2, e));
    CHECK(is_right(&probe_kv, &v, " 42") && is_right(&probe_kv, &v, "It is 42, not 7") && is_right(&probe_kv, &v, "042."));
    CHECK(!is_right(&probe_kv, &v, "7 or 42") && !is_right(&probe_kv, &v, "421") && !is_right(&probe_kv, &v, "4 2") &&
          !is_right(&probe_kv, &v, ""));
    list_clear(&v.refs);
    CHECK_OK(list_add(&v.refs, "0", 1, e));
    CHECK(is_right(&probe_kv, &v, "00") && !is_right(&probe_kv, &v, "none"));
    CHECK_OK(list_add(&s.refs, "17", 2, e));
    CHECK(is_right(&probe_ar, &s, "it is 3 + 14 = 17") && is_right(&probe_ar_mh, &s, "2170") && !is_right(&probe_ar, &s, "1 7") &&
          !is_right(&probe_ar, &s, ""));
    CHECK(is_right(&probe_vt, &x, "X1, X2 and X3") && is_right(&probe_vt, &x, "X3X2 X1 X1") && is_right(&probe_vt, &x,
              "X1 X2 X3 but not Y1"));
    CHECK(!is_right(&probe_vt, &x, "X1, X2") && !is_right(&probe_vt, &x, "X1 X2 X3 X4") && !is_right(&probe_vt, &x, "X1 X2 X31") &&
          !is_right(&probe_vt, &x, "X X X"));
    for (int i = 0; i < 12; i++) {
        char w[8];
        snprintf(w, sizeof w, "%c%c", 'a' + i, 'a' + i);
        CHECK_OK(list_add(&c.listed, w, 2, e));
        if (i < 10)
            CHECK_OK(list_add(&c.refs, w, 2, e));
    }
    CHECK(is_right(&probe_cwe, &c, "1. aa 2. bb 3. cc 4. dd 5. ee 6. ff 7. gg 8. hh 9. ii 10. jj 11. kk"));
    CHECK(is_right(&probe_cwe, &c, "jj,ii,hh,gg,ff,ee,dd,cc,bb,bb,aa Explanation: kk"));
    CHECK(!is_right(&probe_cwe, &c, "aa bb cc dd ee ff gg hh ii kk jj"));          /* kk is among the first ten */
    CHECK(!is_right(&probe_cwe, &c, "aa bb cc dd ee ff gg hh ii Explanation jj")); /* nine before the cut */
    CHECK(!is_right(&probe_cwe, &c, "aabb cc dd ee ff gg hh ii jj aa"));           /* a word is a whole word */
    list_free(&v.refs);
    list_free(&s.refs);
    list_free(&c.refs);
    list_free(&c.listed);
}

/* ---- bad input, reuse of scores ---- */

static void test_bad(void)
{
    struct selection out, had = {.method = "lm-ppl", .layers = 12, .score = {3, 1, 2}, .has_score = true, .tokens = 77, .flops_forward = 5};
    static const bool not01[12] = {true, true};
    struct select_input in = {.layers = 12, .budget = 0};
    CHECK_ERR(selector_run(&sel_uniform, &in, &out, e), E_USAGE, "budget 0 is outside 1..11");
    in.budget = 12;
    CHECK_ERR(selector_run(&sel_uniform, &in, &out, e), E_USAGE, "budget 12 is outside 1..11");
    in.budget = 11;
    in.exclude = not01;
    CHECK_ERR(selector_run(&sel_uniform, &in, &out, e), E_USAGE, "budget 11 is outside 1..10");
    in.budget = 3;
    CHECK_OK(selector_run(&sel_uniform, &in, &out, e));
    CHECK_STR(out.variant, "2 layers excluded");
    in.exclude = NULL;
    CHECK_ERR(selector_run(&sel_smart, &in, &out, e), E_USAGE, "needs --model");
    CHECK_ERR(selector_run(&sel_ar, &in, &out, e), E_USAGE, "needs --model");
    in.scores = &had;
    CHECK_OK(selector_run(&sel_lm_ppl, &in, &out, e)); /* no teacher, no data: the scores are there */
    CHECK(out.reused && out.tokens == 77 && out.flops_forward == 5 && out.kind[0] == MIX_FULL && out.kind[2] == MIX_FULL &&
          out.kind[1] == MIX_FULL);
    CHECK_ERR(selector_run(&sel_act_mse, &in, &out, e), E_USAGE, "the scores are of method 'lm-ppl', not 'act-mse'");
    had.layers = 11;
    CHECK_ERR(selector_run(&sel_lm_ppl, &in, &out, e), E_USAGE, "11 layers");
    had.layers = 12;
    had.has_score = false;
    CHECK_ERR(selector_run(&sel_lm_ppl, &in, &out, e), E_USAGE, "has no scores");
    had.uninformative = had.has_base = true; /* a probe that says nothing says it at any budget */
    had.base = 0.125;
    CHECK_OK(selector_run(&sel_lm_ppl, &in, &out, e));
    CHECK(out.uninformative && !out.filled && out.has_base && out.base == 0.125 && !out.has_score && out.budget == 0);
    had.uninformative = false;
    had.has_score = true;
    had.score[4] = NAN;
    CHECK_ERR(selector_run(&sel_lm_ppl, &in, &out, e), E_NUMERIC, "score of layer 4");
    in.scores = NULL;
    in.spec = "0,0";
    CHECK_ERR(selector_run(&sel_custom, &in, &out, e), E_USAGE, "stands there twice");
    in.spec = "12";
    CHECK_ERR(selector_run(&sel_custom, &in, &out, e), E_USAGE, "not a layer");
}

static void test_windows(void)
{
    /* ranking 4,1,3,0,2,5; two Full, then two Window */
    struct selection had = {.method = "lm-ppl", .layers = 6, .score = {3, 8, 2, 5, 9, 1}, .has_score = true}, out;
    static const bool not3[6] = {[3] = true};
    struct select_input in = {.layers = 6, .budget = 2, .windows = 2, .window_cost = 0.125, .scores = &had};
    struct str t = STR_INIT;
    CHECK_OK(selector_run(&sel_lm_ppl, &in, &out, e));
    layers_text(out.kind, 6, &t);
    CHECK_STR(str_c(&t), "full:1,4 window:0,3");
    CHECK_STR(out.variant, "+2 Window");
    CHECK(out.budget == 2.25);
    in.exclude = not3;
    CHECK_OK(selector_run(&sel_lm_ppl, &in, &out, e));
    CHECK(out.kind[3] == MIX_GDN && out.kind[0] == MIX_WINDOW && out.kind[2] == MIX_WINDOW);
    in = (struct select_input){.layers = 12, .budget = 3, .windows = 3, .window_cost = 0.125};
    CHECK_OK(selector_run(&sel_uniform, &in, &out, e)); /* Full 0,5,10; of 1,2,3,4,6,7,8,9,11 the places 0,4,8 */
    str_clear(&t);
    layers_text(out.kind, 12, &t);
    CHECK_STR(str_c(&t), "full:0,5,10 window:1,6,11");
    str_free(&t);
    in.windows = 10;
    CHECK_ERR(selector_run(&sel_uniform, &in, &out, e), E_USAGE, "10 Window layers beside 3 Full ones do not fit 12 layers");
    in.windows = 1;
    in.spec = "0";
    CHECK_ERR(selector_run(&sel_custom, &in, &out, e), E_USAGE, "takes no --windows");
}

static void test_published(void)
{
    struct select_input in = {.layers = 36, .budget = 5, .of = "ga-s2", .model = "Qwen2.5-3B-Instruct", .sets_path = SETS};
    static const bool not32[36] = {[32] = true};
    struct selection out;
    struct str t = STR_INIT;
    CHECK_OK(selector_run(&sel_published, &in, &out, e));
    layers_text(out.kind, out.layers, &t);
    CHECK_STR(str_c(&t), "full:20,21,22,32,33");
    str_free(&t);
    in.exclude = not32;
    CHECK_ERR(selector_run(&sel_published, &in, &out, e), E_USAGE, "keeps layer 32, which is excluded");
    in.exclude = NULL;
    in.model = "Qwen3-8B"; /* as many layers, another model */
    CHECK_ERR(selector_run(&sel_published, &in, &out, e), E_USAGE, "no published set of 'ga-s2' for 'Qwen3-8B'");
    in.model = "tiny";
    CHECK_ERR(selector_run(&sel_published, &in, &out, e), E_USAGE, "there is no published set for 'tiny' with 36 layers");
    CHECK_ERR(selector_run(&sel_published, &in, &out, e), E_USAGE, "there are sets for Llama-3.2-3B-Instruct (28 layers)");
    in.model = "";
    CHECK_ERR(selector_run(&sel_published, &in, &out, e), E_USAGE, "--published-model NAME takes those of a model with as many layers");
    in.model = "Qwen2.5-3B-Instruct";
    in.budget = 35;
    CHECK_ERR(selector_run(&sel_published, &in, &out, e), E_USAGE, "keeps 35 of 36 layers; there are sets of 5, 9,");
    in.budget = 5;
    in.layers = 28;
    CHECK_ERR(selector_run(&sel_published, &in, &out, e), E_USAGE, "no published set for");
    in.layers = 36;
    in.of = "kv";
    CHECK_ERR(selector_run(&sel_published, &in, &out, e), E_USAGE, "ga_s2");
}

static void test_registry(void)
{
    for (size_t i = 0; i < n_selectors; i++) {
        const struct selector *s = selectors[i];
        CHECK(s->name && s->title && s->about && s->needs && s->cost && s->source && s->pick && s->version >= 1);
        CHECK(selector_find(s->name) == s);
    }
    CHECK(!selector_find("nothing"));
}

int main(void)
{
    each_set(smart_row);
    each_set(uniform_row);
    CHECK(smart_rows >= 12 && uniform_rows >= 4);
    printf("%d published SMART sets, %d Uniform sets of Qwen2.5\n", smart_rows, uniform_rows);
    test_smart();
    test_halo();
    test_average();
    test_generators();
    test_aliases();
    test_rules();
    test_bad();
    test_windows();
    test_published();
    test_registry();
    return test_end();
}
