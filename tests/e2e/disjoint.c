/*
 * disjoint STRICT ESSAY EVAL_DIR TEXT_DIR TRAIN_DIR...: no prompt, no key-value pair and no essay sentence of the samples in EVAL_DIR
 * occurs in the samples of TRAIN_DIR... or in the texts of TEXT_DIR. For disjoint.sh.
 *
 * A pair is what a needle sentence ("... magic numbers for KEY is: VALUE") or an assignment of vt ("VAR X = 12345", "VAR Y = VAR X")
 * says, distractors included. An essay sentence is a piece of an evaluation prompt between full stops, question or exclamation marks
 * that stands in ESSAY (the evaluation's haystack text) and has at least MIN_CHARS characters: shorter ones ("What do you mean?") stand
 * in any two novels. Blanks and line breaks count as one blank.
 */
#include <ctype.h>

#include "core/fs.h"
#include "model/data.h"
#include "ruler/ruler.h"
#include "tests/test.h"

enum { MIN_CHARS = 40, SHOWN = 5 };

struct strings {
    char **v;
    size_t n, cap;
};

static void add(struct strings *s, const char *p, size_t n)
{
    if (s->n == s->cap) {
        s->cap = s->cap ? 2 * s->cap : 1024;
        s->v = realloc(s->v, s->cap * sizeof *s->v);
    }
    char *q = s->v ? malloc(n + 1) : NULL;
    if (!q)
        exit(1);
    memcpy(q, p, n);
    q[n] = 0;
    s->v[s->n++] = q;
}

static int by_text(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static void sort_unique(struct strings *s)
{
    size_t k = 0;
    if (s->n)
        qsort(s->v, s->n, sizeof *s->v, by_text);
    for (size_t i = 0; i < s->n; i++)
        if (i == 0 || strcmp(s->v[i], s->v[k - 1]))
            s->v[k++] = s->v[i];
        else
            free(s->v[i]);
    s->n = k;
}

static void drop(struct strings *s)
{
    for (size_t i = 0; i < s->n; i++)
        free(s->v[i]);
    free(s->v);
}

static void squeeze(struct str *out, const char *p, size_t n)
{
    bool blank = true;
    for (size_t i = 0; i < n; i++) {
        bool b = isspace((unsigned char)p[i]) != 0;
        if (!b || !blank)
            str_putc(out, b ? ' ' : p[i]);
        blank = b;
    }
}

struct side {
    struct strings prompts, pairs; /* squeezed */
    struct str text;               /* everything, squeezed, pieces parted by line breaks */
    size_t samples;
};

static void pairs_of(struct strings *out, const char *s)
{
    static const char needle[] = " for ", is[] = " is: ", var[] = "VAR ";
    for (const char *p = s; (p = strstr(p, "special magic ")) != NULL; p++) {
        const char *end = p + strcspn(p, "\n"), *f = strstr(p, needle), *i = f ? strstr(f, is) : NULL;
        if (!i || i > end || i - f > 80)
            continue; /* an instruction or the question */
        size_t n = strcspn(i + sizeof is - 1, " .\n");
        char pair[256];
        snprintf(pair, sizeof pair, "%.*s = %.*s", (int)(i - f - (long)(sizeof needle - 1)), f + sizeof needle - 1, (int)n,
                 i + sizeof is - 1);
        add(out, pair, strlen(pair));
    }
    for (const char *p = s; (p = strstr(p, var)) != NULL; p++) {
        size_t a = strcspn(p + 4, " "), b;
        const char *eq = p + 4 + a;
        if (a == 0 || a > 16 || strncmp(eq, " = ", 3))
            continue;
        eq += 3;
        b = strcspn(eq, " .\n");
        if (!strncmp(eq, var, 4))
            b = 4 + strcspn(eq + 4, " .\n");
        add(out, p, (size_t)(eq + b - p));
    }
}

static int take_sample(void *ctx, const struct ruler_sample *s, struct err *e)
{
    struct side *d = ctx;
    struct str t = STR_INIT;
    UNUSED(e);
    squeeze(&t, s->prompt, strlen(s->prompt));
    add(&d->prompts, str_c(&t), t.len);
    pairs_of(&d->pairs, str_c(&t));
    str_add(&d->text, str_c(&t), t.len);
    str_putc(&d->text, '\n');
    str_free(&t);
    d->samples++;
    return 0;
}

static int take_text(void *ctx, const char *text, size_t n, struct err *e)
{
    UNUSED(e);
    squeeze(ctx, text, n);
    str_putc(ctx, '\n');
    return 0;
}

static void take_folder(struct side *d, const char *dir)
{
    struct names names = {0};
    char path[1024];
    CHECK_OK(dir_list(dir, &names, e));
    for (size_t i = 0; i < names.n; i++)
        if (strncmp(names.v[i], "README", 6) && names.v[i][0] != '.')
            CHECK_OK(text_documents(path_join(path, dir, names.v[i]), "text", take_text, &d->text, e));
    names_free(&names);
}

/* Sentences of the prompts that stand in the essay. */
static void essay_sentences(struct strings *out, const struct strings *prompts, const char *essay)
{
    for (size_t i = 0; i < prompts->n; i++)
        for (const char *p = prompts->v[i]; *p;) {
            size_t n = strcspn(p, ".!?");
            const char *s = p;
            p += n + (p[n] != 0);
            while (*s == ' ')
                s++, n--;
            if (n >= MIN_CHARS && n < 4000)
                add(out, s, n);
        }
    sort_unique(out);
    size_t k = 0;
    for (size_t i = 0; i < out->n; i++)
        if (strstr(essay, out->v[i]))
            out->v[k++] = out->v[i];
        else
            free(out->v[i]);
    out->n = k;
}

/* How many of a stand in the text; the first few are shown. */
static size_t found(const char *what, const struct strings *a, const char *text)
{
    size_t hits = 0;
    for (size_t i = 0; i < a->n; i++)
        if (strstr(text, a->v[i]) && hits++ < SHOWN)
            printf("  %s in training data: %.120s\n", what, a->v[i]);
    return hits;
}

static size_t common(const struct strings *a, const struct strings *b)
{
    size_t hits = 0;
    for (size_t i = 0; i < a->n; i++)
        if (b->n && bsearch(&a->v[i], b->v, b->n, sizeof *b->v, by_text) && hits++ < SHOWN)
            printf("  pair in training data: %s\n", a->v[i]);
    return hits;
}

int main(int argc, char **argv)
{
    struct side eval = {0}, train = {0};
    struct str essay = STR_INIT;
    struct strings sentences = {0};
    if (argc < 6)
        return 2;
    bool strict = !strcmp(argv[1], "1");
    CHECK_OK(text_documents(argv[2], "text", take_text, &essay, e));
    CHECK_OK(ruler_each_sample(argv[3], NULL, take_sample, &eval, e));
    take_folder(&train, argv[4]);
    for (int i = 5; i < argc; i++)
        CHECK_OK(ruler_each_sample(argv[i], NULL, take_sample, &train, e));
    sort_unique(&eval.prompts);
    sort_unique(&eval.pairs);
    sort_unique(&train.pairs);
    essay_sentences(&sentences, &eval.prompts, str_c(&essay));
    size_t p = found("prompt", &eval.prompts, str_c(&train.text)), k = common(&eval.pairs, &train.pairs),
        s = found("essay sentence", &sentences, str_c(&train.text));
    printf("evaluation: %zu samples, %zu prompts, %zu pairs, %zu essay sentences of %d and more characters; training: %zu samples, %zu "
           "pairs, %.1f MB of text\n", eval.samples, eval.prompts.n, eval.pairs.n, sentences.n, MIN_CHARS, train.samples, train.pairs.n,
           (double)train.text.len / 1e6);
    printf("in both: %zu prompts, %zu pairs, %zu essay sentences\n", p, k, s);
    // else nothing was looked at
    CHECK(eval.prompts.n > 100 && eval.pairs.n > 100 && sentences.n > 20 && train.samples > 1000 && train.pairs.n > 1000);
    CHECK_EQ_I(p, 0);
    CHECK_EQ_I(k, 0);
    if (strict)
        CHECK_EQ_I(s, 0);
    else
        printf("NOT PROVEN: the essay sentences; the training stages do not name haystack texts of their own ('essays')\n");
    drop(&eval.prompts);
    drop(&eval.pairs);
    drop(&train.prompts);
    drop(&train.pairs);
    drop(&sentences);
    str_free(&eval.text);
    str_free(&train.text);
    str_free(&essay);
    return test_end();
}
