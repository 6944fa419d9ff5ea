/* Passkey samples: every passkey stands in the text once, whole, at a place between words; without them the text is as it was; the
 * answer lists them in order. */
#include "baselines/passkey.h"
#include "tests/test.h"

static const char text[] =
    "One day a fox went out to look for grapes. The sun was hot, and the road was long; but the fox knew a garden wall.\nBehind it grew "
    "vines, and on the vines hung grapes, high up.";

/* The words of passkey k as the answer gives them. */
static bool answer_key(const char *answer, int k, char out[4096])
{
    char head[32];
    snprintf(head, sizeof head, " %d: ", k);
    const char *p = strstr(answer, head), *end = p ? strchr(p, '.') : NULL;
    if (!end)
        return false;
    snprintf(out, 4096, "%.*s", (int)(end - p - (long)strlen(head)), p + strlen(head));
    return true;
}

static int words_of(const char *key)
{
    int n = 0;
    for (const char *p = key; *p; n++) {
        size_t len = strcspn(p, " ");
        bool known = false;
        for (int w = 0; w < 26; w++)
            known = known || (strlen(passkey_words[w]) == len && !strncmp(passkey_words[w], p, len));
        CHECK(known);
        p += len + (p[len] == ' ');
    }
    return n;
}

static void one(const struct passkey_opts *o, int64_t index)
{
    struct str prompt = STR_INIT, answer = STR_INIT, again = STR_INIT, other = STR_INIT, left = STR_INIT;
    CHECK_OK(passkey_make(o, index, text, strlen(text), &prompt, &answer, e));
    CHECK_OK(passkey_make(o, index, text, strlen(text), &again, &other, e));
    CHECK_STR(str_c(&again), str_c(&prompt));
    CHECK_STR(str_c(&other), str_c(&answer));
    str_puts(&left, str_c(&prompt));
    for (int k = 1; k <= o->keys; k++) {
        char key[4096] = "", sentence[4200];
        CHECK(answer_key(str_c(&answer), k, key));
        CHECK_EQ_I(words_of(key), o->words);
        snprintf(sentence, sizeof sentence, " Passkey number %d is: %s.", k, key);
        char *at = strstr(left.p, sentence);
        CHECK(at != NULL);
        if (!at)
            continue;
        char after = at[strlen(sentence)];
        CHECK(after == ' ' || after == '\n');
        memmove(at, at + strlen(sentence), strlen(at + strlen(sentence)) + 1);
        CHECK(!strstr(left.p, sentence)); /* only once */
    }
    CHECK(!strstr(left.p, "Passkey number"));
    CHECK(strstr(left.p, text) != NULL);
    str_clear(&again);
    str_clear(&other);
    CHECK_OK(passkey_make(o, index + 1, text, strlen(text), &again, &other, e));
    CHECK(strcmp(str_c(&other), str_c(&answer)) != 0);
    struct str *all[] = {&prompt, &answer, &again, &other, &left};
    for (size_t i = 0; i < ARRAY_LEN(all); i++)
        str_free(all[i]);
}

int main(void)
{
    struct passkey_opts o = {.keys = 10, .words = 32, .depths = 1000, .seed = 3};
    struct str p = STR_INIT, a = STR_INIT;
    for (int64_t i = 0; i < 40; i++)
        one(&o, i);
    for (o.keys = 1; o.keys <= 4; o.keys++) { /* as many keys as depths: every depth is taken */
        o.words = 3;
        o.depths = o.keys;
        one(&o, 7);
    }
    o = (struct passkey_opts){.keys = 3, .words = 2, .depths = 10};
    CHECK_OK(passkey_make(&o, 0, "", 0, &p, &a, e)); /* no text at all */
    CHECK(strstr(str_c(&p), "Passkey number 3 is: ") != NULL);
    o.depths = 2;
    CHECK_ERR(passkey_make(&o, 0, text, 4, &p, &a, e), E_USAGE, "2 candidate depths for 3 keys");
    o.keys = 65;
    CHECK_ERR(passkey_check(&o, e), E_USAGE, "65 keys");
    o = (struct passkey_opts){.keys = 1, .words = 0, .depths = 10};
    CHECK_ERR(passkey_check(&o, e), E_USAGE, "of 0 words");
    str_free(&p);
    str_free(&a);
    return test_end();
}
