/* Counts with remembered parts against tok_count: prose, documents, hard texts cut and joined at random, every kind of split rule; twice,
 * from a full table, on two threads. */
#include "core/pool.h"
#include "core/rng.h"
#include "model/tok_counter.h"
#include "tests/test.h"

static const char *const pieces[] = {"The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again.",
                                     "\n",
                                     "\n\n",
                                     " \n",
                                     "\r\n",
                                     "\t\n",
                                     ".\n",
                                     "?\n",
                                     ".\n\n",
                                     "Document 12:\nTitle\nSome text; more of it! And (this)? Yes",
                                     " ",
                                     "  ",
                                     "One of the special magic numbers for tenuous-hospice is: 1234567.",
                                     "a",
                                     "Z",
                                     "\xc3\xa9",
                                     "e\xcc\x81",
                                     "\xcc\x81",
                                     "\xe2\x80\xa8",
                                     "\xc2\xa0",
                                     "\xc2\x85",
                                     ". ",
                                     "! ",
                                     "? ",
                                     "...",
                                     "'s",
                                     "'S ",
                                     "<|endoftext|>",
                                     "<|im_start|>",
                                     "12",
                                     "3.14 ",
                                     "x.\xc2\xa0y",
                                     "\"Quoted.\" He",
                                     "\xea\xb0\x80",
                                     "\xf0\x9f\x98\x80",
                                     ".A",
                                     "\nA",
                                     " \nA",
                                     "\xe3\x80\x80\nB",
                                     "\x0b\nC",
                                     "!!",
                                     "word ",
                                     "I'll ",
                                     "\xef\xbc\x81 X"};

static void random_text(struct str *s, uint64_t stream)
{
    str_clear(s);
    for (uint64_t i = 0; i < 40; i++)
        str_puts(s, pieces[ctr_below(3, stream, i, ARRAY_LEN(pieces))]);
}

struct job {
    struct tok_counter *c;
    const struct tok *t;
    int64_t wrong[64];
};

static void one_stretch(void *ctx, int64_t item, int worker)
{
    struct job *j = ctx;
    struct str s = STR_INIT;
    UNUSED(worker);
    for (uint64_t k = 0; k < 200; k++) {
        int64_t want = -1, got = -2;
        struct err e = ERR_INIT;
        random_text(&s, (uint64_t)item * 1000 + k % 150); /* the last ones again */
        if (tok_count(j->t, str_c(&s), s.len, true, &want, &e) || tok_counter_count(j->c, str_c(&s), s.len, &got, &e) || want != got) {
            if (!j->wrong[item])
                printf("%d, not %d tokens: %s\n", (int)got, (int)want, str_c(&s));
            j->wrong[item]++;
        }
    }
    str_free(&s);
}

static void check(const char *path, struct pool *pool)
{
    struct job j = {NULL, NULL, {0}};
    struct tok *t = NULL;
    CHECK_OK(tok_load(&t, path, NULL, e));
    if (!t)
        return;
    printf("---- %s (%s)\n", path, tok_family(t));
    CHECK_OK(tok_counter_open(&j.c, t, true, e));
    j.t = t;
    pool_run(pool, 64, one_stretch, &j);
    for (int i = 0; i < 64; i++)
        CHECK_EQ_I(j.wrong[i], 0);
    /* more parts than the table holds */
    struct str s = STR_INIT;
    for (int i = 0; i < 30000; i++)
        str_printf(&s, "Sentence number %d is not like the others, that is so. ", i * 7919);
    int64_t a = 0, b = 0;
    CHECK_OK(tok_count(t, str_c(&s), s.len, true, &a, e));
    CHECK_OK(tok_counter_count(j.c, str_c(&s), s.len, &b, e));
    CHECK_EQ_I(a, b);
    CHECK_OK(tok_counter_count(j.c, "", 0, &b, e));
    CHECK_EQ_I(b, 0);
    CHECK_ERR(tok_counter_count(j.c, "a\xff", 2, &b, e), E_INPUT, "UTF-8");
    /* two counters of one tokenizer in turns: what special tokens count for in one is not what they count for in the other */
    struct tok_counter *plain = NULL;
    CHECK_OK(tok_counter_open(&plain, t, false, e));
    for (int i = 0; plain && i < 4; i++) {
        static const char text[] = "What follows is one token. Or <|endoftext|> is several of them.\nIt depends on <|endoftext|>.";
        CHECK_OK(tok_count(t, text, sizeof text - 1, i % 2, &a, e));
        CHECK_OK(tok_counter_count(i % 2 ? j.c : plain, text, sizeof text - 1, &b, e));
        CHECK_EQ_I(a, b);
    }
    tok_counter_close(plain);
    str_free(&s);
    tok_counter_close(j.c);
    tok_free(t);
}

int main(void)
{
    static const char *const more[] = {"tokenizers/qwen2", "tokenizers/gpt2", "tokenizers/smollm2", "tokenizers/dolma2/tokenizer.json"};
    struct pool *pool = NULL;
    CHECK_OK(pool_open(&pool, 2, e));
    check("experiments/tiny/teacher", pool);
    for (size_t i = 0; i < ARRAY_LEN(more); i++) {
        const char *path = test_data(more[i]);
        if (path)
            check(path, pool);
    }
    pool_close(pool);
    return test_end();
}
