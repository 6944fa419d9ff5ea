/* Malformed tokenizer.json files end in an error, valid ones load with the content they have; generated ones cover what the set of files
 * does not. */
#include "tests/test.h"

#include <time.h>

#include "core/fs.h"
#include "model/tok.h"

static void check_ids(const struct tok *t, const char *text, const int32_t *want, size_t n)
{
    struct tok_ids ids = {0};
    CHECK_OK(tok_encode(t, text, strlen(text), true, &ids, e));
    CHECK(ids.n == n && !memcmp(ids.v, want, n * sizeof *want));
    tok_ids_free(&ids);
}

static void check_valid(const char *file, const struct tok *t)
{
    CHECK_STR(tok_family(t), "gpt2");
    if (strstr(file, "id_gap")) {
        check_ids(t, "abba", (int32_t[]){100, 7, 0}, 3);
        CHECK(tok_vocab_size(t) == 101 && !tok_bytes(t, 50, &(const char *){0}, &(size_t){0}));
    } else if (strstr(file, "no_merges")) {
        check_ids(t, "ab", (int32_t[]){0, 1}, 2);
    } else {
        check_ids(t, "abcab", (int32_t[]){4, 3}, 2);
    }
    if (strstr(file, "added")) {
        check_ids(t, "ab<s>c", (int32_t[]){3, 5, 2}, 3);
        CHECK(tok_is_special(t, 5) && tok_id(t, "<s>") == 5 && tok_vocab_size(t) == 6);
    }
}

static void bad_folder(void)
{
    const char *list = test_data("oracle/model/bad/expected.tsv");
    struct str s = STR_INIT;
    int n = 0;
    if (!list) {
        printf("left out: oracle/model/bad is not in the test data\n");
        return;
    }
    CHECK_OK(file_read(list, 0, &s, e));
    for (const char *p = str_c(&s), *nl; (nl = strchr(p, '\n')) != NULL; p = nl + 1) {
        char file[128], verdict[32], path[1400];
        if (sscanf(p, "tokenizer/%120s\t%30s", file, verdict) != 2)
            continue;
        snprintf(path, sizeof path, "%.*s/tokenizer/%s", (int)(strlen(list) - strlen("/expected.tsv")), list, file);
        struct tok *t = NULL;
        struct err e = ERR_INIT;
        clock_t t0 = clock();
        int rc = tok_load(&t, path, NULL, &e);
        CHECK(clock() - t0 < CLOCKS_PER_SEC);
        printf("%-28s %-8s %s\n", file, verdict, rc ? e.msg + (strrchr(e.msg, '/') ? strrchr(e.msg, '/') - e.msg : 0) : "loaded");
        if (!strcmp(verdict, "valid")) {
            CHECK(rc == 0);
            if (rc == 0)
                check_valid(file, t);
        } else if (!strcmp(verdict, "invalid")) {
            CHECK(rc != 0 && e.code == E_INPUT);
        }
        tok_free(t);
        n++;
    }
    CHECK(n >= 34);
    str_free(&s);
}

/* A file of given pieces, in a scratch folder. */
static int try_json(const char *dir, const char *added, const char *norm, const char *pre, const char *post, const char *model,
                    struct tok **t, struct err *e)
{
    char path[1024];
    struct str s = STR_INIT;
    str_printf(&s,
               "{\"version\":\"1.0\",\"added_tokens\":[%s],\"normalizer\":%s,\"pre_tokenizer\":%s,\"post_processor\":%s,\"decoder\":{"
               "\"type\":\"ByteLevel\"},"
               "\"model\":{\"type\":\"BPE\",%s}}",
               added, norm, pre, post, model);
    int rc = file_write(path_join(path, dir, "tokenizer.json"), s.p, s.len, e);
    str_free(&s);
    return rc ? rc : tok_load(t, path, NULL, e);
}

#define BYTE_LEVEL "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"trim_offsets\":true,\"use_regex\":true}"
#define BYTE_LEVEL_ONLY "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"trim_offsets\":true,\"use_regex\":false}"
#define SPLIT(re)                                                                                                                          \
    "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"pattern\":{\"Regex\":\"" re                                           \
    "\"},\"behavior\":\"Isolated\",\"invert\":false}," BYTE_LEVEL_ONLY "]}"
#define MODEL "\"vocab\":{\"a\":0,\"b\":1,\"c\":2,\"ab\":3,\"abc\":4,\"\\u0120\":5},\"merges\":[\"a b\",\"ab c\"]"

static void generated(const char *dir)
{
    struct tok *t = NULL;
#define REFUSED(added, norm, pre, post, model, text) CHECK_ERR(try_json(dir, added, norm, pre, post, model, &t, e), E_INPUT, text)
    REFUSED("", "{\"type\":\"Lowercase\"}", BYTE_LEVEL, "null", MODEL, "normalizer of type 'Lowercase'");
    REFUSED("", "{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFC\"},{\"type\":\"Strip\"}]}", BYTE_LEVEL, "null", MODEL, "'Strip'");
    REFUSED("", "null", "null", "null", MODEL, "no pre_tokenizer");
    REFUSED("", "null", "{\"type\":\"Sequence\",\"pretokenizers\":[]}", "null", MODEL, "without any step");
    REFUSED("", "null", "{\"type\":\"Digits\",\"individual_digits\":true}", "null", MODEL, "without ByteLevel at its end");
    REFUSED("", "null", "{\"type\":\"ByteLevel\",\"add_prefix_space\":true}", "null", MODEL, "add_prefix_space");
    REFUSED("", "null", SPLIT("[a[bc]]"), "null", MODEL, "a class inside a class");
    REFUSED("", "null", SPLIT("[a-z&&[^b]]"), "null", MODEL, "class");
    REFUSED("", "null", SPLIT("\\\\h+"), "null", MODEL, "this escape");
    REFUSED("", "null", SPLIT("a$"), "null", MODEL, "a line anchor");
    REFUSED("", "null", SPLIT("a*"), "null", MODEL, "match nothing");
    REFUSED("", "null", SPLIT("(?<n>a)"), "null", MODEL, "this kind of group");
    REFUSED("", "null", SPLIT("a{,3}"), "null", MODEL, "'{' without a number");
    REFUSED("", "null", SPLIT("\\\\p{Nope}"), "null", MODEL, "bad regular expression");
    REFUSED("", "null", SPLIT("[abc"), "null", MODEL, "unclosed class");
    REFUSED("", "null", BYTE_LEVEL, "{\"type\":\"RobertaProcessing\"}", MODEL, "post_processor of type 'RobertaProcessing'");
    REFUSED("", "null", BYTE_LEVEL,
            "{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"x\"}}],\"special_tokens\":{\"x\":{\"ids\":[99]}}}",
            MODEL, "outside the vocabulary");
    REFUSED("", "null", BYTE_LEVEL, "{\"type\":\"TemplateProcessing\",\"single\":[]}", MODEL, "lacks the text itself");
    REFUSED("", "null", BYTE_LEVEL, "null", MODEL ",\"dropout\":0.1", "dropout");
    REFUSED("", "null", BYTE_LEVEL, "null", MODEL ",\"end_of_word_suffix\":\"</w>\"", "suffixes");
    REFUSED("", "null", BYTE_LEVEL, "null", MODEL ",\"unk_token\":\"<unk>\"", "not in the vocabulary");
    REFUSED("", "null", BYTE_LEVEL, "null", "\"vocab\":{},\"merges\":[]", "vocabulary is empty");
    REFUSED("{\"id\":9,\"content\":\"\"}", "null", BYTE_LEVEL, "null", MODEL, "is empty");
    REFUSED("{\"id\":9,\"content\":\"x\"},{\"id\":10,\"content\":\"x\"}", "null", BYTE_LEVEL, "null", MODEL, "claims id 10");
    REFUSED("{\"id\":9,\"content\":\"x\"},{\"id\":9,\"content\":\"x\"}", "null", BYTE_LEVEL, "null", MODEL, "stands twice");
    REFUSED("{\"id\":9,\"content\":\"x\"},{\"id\":9,\"content\":\"y\"}", "null", BYTE_LEVEL, "null", MODEL, "belongs to two tokens");
#undef REFUSED

    /* Flags of added tokens; unk; BOS by template; ignore_merges; a script by its name alone. */
    CHECK_OK(try_json(
        dir,
        "{\"id\":6,\"content\":\"<l>\",\"lstrip\":true,\"special\":true},{\"id\":7,\"content\":\"<r>\",\"rstrip\":true,\"special\":true},"
        "{\"id\":8,\"content\":\"ww\",\"single_word\":true,\"normalized\":false},{\"id\":9,\"content\":\"<l><r>\",\"special\":true}",
        "null", BYTE_LEVEL,
        "{\"type\":\"Sequence\",\"processors\":[{\"type\":\"ByteLevel\"},{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{"
        "\"id\":\"<l>\"}},"
        "{\"Sequence\":{\"id\":\"A\"}},{\"SpecialToken\":{\"id\":\"<r>\"}}],\"special_tokens\":{\"<l>\":{\"ids\":[6]},\"<r>\":{\"ids\":[7]}"
        "}}]}",
        MODEL ",\"unk_token\":\"c\",\"fuse_unk\":true", &t, e));
    check_ids(t, "a  <l> b", (int32_t[]){0, 6, 5, 1}, 4);
    check_ids(t, "a <r>  b", (int32_t[]){0, 5, 7, 1}, 4);
    check_ids(t, "<l><r>a<l>", (int32_t[]){9, 0, 6}, 3);
    check_ids(t, "ww a", (int32_t[]){8, 5, 0}, 3);
    check_ids(t, "aww", (int32_t[]){0, 2}, 2); /* "ww" inside a word: two bytes without token, fused into one unk ("c") */
    check_ids(t, "xyz", (int32_t[]){2}, 1);
    const int32_t *fix;
    CHECK(tok_prefix(t, &fix) == 1 && fix[0] == 6);
    CHECK(tok_suffix(t, &fix) == 1 && fix[0] == 7);
    struct tok_ids ids = {0};
    CHECK_OK(tok_encode(t, "a<l>", 4, false, &ids, e));
    CHECK(ids.n == 4 && ids.v[0] == 0 && ids.v[1] == 2 && ids.v[3] == 2); /* "<", "l", ">" are pieces; unk is fused inside a piece only */
    CHECK_ERR(tok_encode(t, "a\xff", 2, true, &ids, e), E_INPUT, "not UTF-8: byte 0xff at offset 1 of 2");
    CHECK_ERR(tok_encode(t, "\xed\xa0\x80", 3, true, &ids, e), E_INPUT, "offset 0 of 3");
    CHECK(ids.n == 4);
    struct str s = STR_INIT;
    CHECK_ERR(tok_decode(t, (int32_t[]){0, 77}, 2, false, &s, e), E_INPUT, "id 77 at position 1");
    str_free(&s);
    tok_ids_free(&ids);
    tok_free(t);
    t = NULL;
    CHECK_OK(try_json(dir, "", "null", SPLIT("[\\\\p{Han}]+|\\\\d{1,2}|\\\\S+?\\\\s"), "null", MODEL ",\"ignore_merges\":true", &t, e));
    CHECK_STR(tok_family(t), "custom");
    check_ids(t, "abc", (int32_t[]){4}, 1);
    tok_free(t);
}

/* vocab.json of these bytes beside a merges.txt. */
static int try_vocab(const char *dir, const char *vocab, size_t n, const char *merges, struct tok **t, struct err *e)
{
    char path[1024];
    TRY(file_write(path_join(path, dir, "vocab.json"), vocab, n, e));
    TRY(file_write(path_join(path, dir, "merges.txt"), merges, strlen(merges), e));
    return tok_load(t, dir, "gpt2", e);
}

/* What is wrong with a vocab.json is said with its place and the value seen. */
static void vocab_refused(const char *dir)
{
    static const char *const bad[][2] = {
        {"", "vocab.json:1:1: expected '{': an object of \"token\": id, found the end of the file"},
        {"[1]", ":1:1: expected '{': an object of \"token\": id, found '['"},
        {"\xef\xbb\xbf{}", ":1:1: expected '{': an object of \"token\": id, found byte 0xef"},
        {"{", ":1:2: expected a token in double quotes, found the end of the file"},
        {"{\"a\":0", ":1:7: expected ',' or '}' behind an id, found the end of the file"},
        {"{\"a\":0,\n\n \"b", ":3:2: the file ends inside the token that begins here"},
        {"{\"a\":0,\"b\\", ":1:11: expected one of \"\\/bfnrtu after '\\', found the end of the file"},
        {"{\"a\"", ":1:5: expected ':' between a token and its id, found the end of the file"},
        {"{\"a\":", ":1:6: expected the token's id, an integer, found the end of the file"},
        {"{\"a\":0,}", ":1:8: expected a token in double quotes, found '}'"},
        {"{,\"a\":0}", ":1:2: expected a token in double quotes, found ','"},
        {"{\"a\":0 \"b\":1}", ":1:8: expected ',' or '}' behind an id, found '\"'"},
        {"{\"a\":0}x", ":1:8: expected the end of the file behind the object, found 'x'"},
        {"{\"a\":0}{\"b\":1}", ":1:8: expected the end of the file"},
        {"{a:0}", ":1:2: expected a token in double quotes, found 'a'"},
        {"{\"\xc3\xa9\\x\":0}", ":1:5: expected one of \"\\/bfnrtu after '\\', found 'x'"},
        {"{\"\\u12g4\":0}", ":1:7: expected four hexadecimal digits after '\\u', found 'g'"},
        {"{\"\\u:123\":0}", ":1:5: expected four hexadecimal digits after '\\u', found ':'"},
        {"{\"\\u@123\":0}", ":1:5: expected four hexadecimal digits after '\\u', found '@'"},
        {"{\"\\ud83d\":0}", ":1:3: escape '\\ud83d' is half of a surrogate pair"},
        {"{\"\\ude00\":0}", ":1:3: escape '\\ude00' is half of a surrogate pair"},
        {"{\"\\ud83d\\n\":0}", ":1:3: escape '\\ud83d' is half of a surrogate pair"},
        {"{\"\\ud83d\\u0041\":0}", ":1:3: escape '\\ud83d' is half of a surrogate pair"},
        {"{\"\\ud83d\\ud83d\":0}", ":1:3: escape '\\ud83d' is half of a surrogate pair"},
        {"{\"a\\u0000\":0}", ":1:4: escape '\\u0000': a token cannot hold a zero byte"},
        {"{\"a\tb\":0}", ":1:4: byte 0x09 inside a token"},
        {"{\"\xc3\":0}", ":1:3: byte 0xc3 is not UTF-8"},
        {"{\"a\":0,\n\"\xed\xa0\x80\":1}", ":2:2: byte 0xed is not UTF-8"},
        {"{\"\xc0\xaf\":0}", ":1:3: byte 0xc0 is not UTF-8"},
        {"{\"a\":\"0\"}", ":1:6: the id of 'a' is a string, expected an integer"},
        {"{\"a\":{\"b\":1}}", ":1:6: the id of 'a' is an object, expected an integer"},
        {"{\"a\":[0]}", ":1:6: the id of 'a' is an array, expected an integer"},
        {"{\"a\":null}", ":1:6: the id of 'a' is true, false or null, expected an integer"},
        {"{\"a\":1.0}", ":1:6: the id of 'a' has a fraction or an exponent, expected an integer"},
        {"{\"a\":1e3}", ":1:6: the id of 'a' has a fraction or an exponent, expected an integer"},
        {"{\"a\":01}", ":1:6: the id of 'a' begins with a zero"},
        {"{\"a\":-}", ":1:7: expected the token's id, an integer, found '}'"},
        {"{\"a\":+1}", ":1:6: expected the token's id, an integer, found '+'"},
        {"{\"a\":-1}", ":1:2: "},
        {"{\"a\":-1}", "token 'a' has id -1 (limit 0..2097151)"},
        {"{\"a\":0,\"b\":2097152}", ":1:8: "},
        {"{\"a\":0,\"b\":2097152}", "token 'b' has id 2097152 (limit 0..2097151)"},
        {"{\"a\":18446744073709551616}", ":1:6: the id of 'a' is 18446744073709551616 (limit 0..2097151)"},
        {"{\"a\":0,\n  \"b\":0}", ":2:3: "},
        {"{\"a\":0,\n  \"b\":0}", "id 0 belongs to two tokens, 'a' and 'b'"},
        {"{\"a\":0,\"\\u0061\":1}", ":1:8: "},
        {"{\"a\":0,\"\\u0061\":1}", "token 'a' stands twice, with ids 0 and 1"},
        {"{\"\\u001b[2J\":-7}", "token '?[2J' has id -7"},
        {" {} ", "the vocabulary is empty"},
    };
    struct tok *t = NULL;
    for (size_t i = 0; i < ARRAY_LEN(bad); i++)
        CHECK_ERR(try_vocab(dir, bad[i][0], strlen(bad[i][0]), "", &t, e), E_INPUT, bad[i][1]);
    CHECK_ERR(try_vocab(dir, "{\"a\0b\":0}", 9, "", &t, e), E_INPUT, ":1:4: byte 0x00 inside a token");
    CHECK_ERR(try_vocab(dir, "{\"a\":0}\0", 8, "", &t, e), E_INPUT, ":1:8: expected the end of the file");
    CHECK_ERR(try_vocab(dir, "{\"a\":0,\"b\":1}", 13, "a b\n", &t, e), E_INPUT, "merges.txt:1: ");
    CHECK_ERR(try_vocab(dir, "{\"a\":0,\"b\":1}", 13, "a b\n", &t, e), E_INPUT, "merge 0 uses 'ab', which is not in the vocabulary");
    CHECK_ERR(try_vocab(dir, "{\"a\":0,\"ab\":1}", 14, "a b\n", &t, e), E_INPUT, "merge 0 uses 'b', which is not in the vocabulary");
}

/* White space, every escape, ids in any order and with holes; merges whose results do not follow one another. */
static void vocab_read(const char *dir)
{
    static const char vocab[] = " {\t\"a\" :7,\r\n\"b\":\t-0 , \"ab\":9,"
                                "\"\\\"\\\\\\/\\b\\f\\n\\r\\t\":2,\"\\u00e9\\uD83D\\ude00\\uABCD\":3,"
                                "\"aba\":4,\"\xc3\xa9\x7f\":20,\"\":21}\n";
    static const struct {
        const char *text;
        int32_t id;
    } want[] = {{"a", 7}, {"b", 0}, {"ab", 9}, {"\"\\/\b\f\n\r\t", 2}, {"\xc3\xa9\xf0\x9f\x98\x80\xea\xaf\x8d", 3}, {"aba", 4},
                {"\xc3\xa9\x7f", 20}, {"", 21}, {"aa", -1}};
    struct tok *t = NULL;
    CHECK_OK(try_vocab(dir, vocab, sizeof vocab - 1, "ab a\na b\n", &t, e));
    if (!t)
        return;
    for (size_t i = 0; i < ARRAY_LEN(want); i++)
        CHECK_EQ_I(tok_id(t, want[i].text), want[i].id);
    CHECK_EQ_I(tok_vocab_size(t), 22);
    CHECK(!tok_text(t, 1, &(const char *){0}, &(size_t){0}) && !tok_text(t, 19, &(const char *){0}, &(size_t){0}));
    check_ids(t, "abab", (int32_t[]){4, 0}, 2); /* a b has the higher rank, but "ab a" needs it first */
    tok_free(t);
}

/* Many more tokens than vocab.json made room for. */
static void vocab_grows(const char *dir)
{
    enum { ADDED = 3000 };
    char path[1024], name[32];
    struct str s = STR_INIT;
    struct tok *t = NULL;
    str_puts(&s, "{\"added_tokens_decoder\":{");
    for (int i = 0; i < ADDED; i++)
        str_printf(&s, "%s\"%d\":{\"content\":\"<added %d>\",\"special\":true}", i ? "," : "", 10 + i, i);
    str_puts(&s, "}}");
    CHECK_OK(file_write(path_join(path, dir, "tokenizer_config.json"), s.p, s.len, e));
    str_free(&s);
    CHECK_OK(try_vocab(dir, "{\"a\":0,\"b\":1,\"ab\":2}", 20, "a b\n", &t, e));
    int wrong = 0;
    for (int i = 0; t && i < ADDED; i++) {
        snprintf(name, sizeof name, "<added %d>", i);
        wrong += tok_id(t, name) != 10 + i;
    }
    CHECK_EQ_I(wrong, 0);
    CHECK(t && tok_id(t, "ab") == 2 && tok_id(t, "<added 3000>") == -1 && tok_vocab_size(t) == 10 + ADDED);
    tok_free(t);
}

int main(void)
{
    char dir[] = "/tmp/dashlab-tok-XXXXXX";
    setvbuf(stdout, NULL, _IOLBF, 0);
    bad_folder();
    if (!mkdtemp(dir))
        return test_skip("cannot make a scratch folder in /tmp");
    generated(dir);
    CHECK_ERR(tok_load(&(struct tok *){0}, dir, "qwen2", e), E_USAGE, "states its own split rule (custom)");
    CHECK_ERR(tok_load(&(struct tok *){0}, "/nonexistent", NULL, e), E_INPUT, "/nonexistent");
    char path[1024];
    CHECK_OK(remove_tree(dir, e));
    CHECK_OK(mkdir_p(dir, e));
    CHECK_ERR(tok_load(&(struct tok *){0}, dir, NULL, e), E_INPUT, "no tokenizer in");
    CHECK_OK(file_write(path_join(path, dir, "vocab.json"), "{\"a\":0,\"b\":1,\"ab\":2}", 20, e));
    CHECK_OK(file_write(path_join(path, dir, "merges.txt"), "#version: 0.2\na b\n", 18, e));
    CHECK_ERR(tok_load(&(struct tok *){0}, dir, NULL, e), E_USAGE, "--pretok NAME, one of gpt2");
    CHECK_ERR(tok_load(&(struct tok *){0}, dir, "nope", e), E_USAGE, "unknown pre-tokenizer 'nope'");
    struct tok *t = NULL;
    CHECK_OK(tok_load(&t, dir, "qwen2", e));
    check_ids(t, "abb", (int32_t[]){2, 1}, 2);
    CHECK_STR(tok_normalizer(t), "nfc");
    tok_free(t);
    CHECK_OK(file_write(path_join(path, dir, "merges.txt"), "a b\nb  a\n", 9, e));
    CHECK_ERR(tok_load(&(struct tok *){0}, dir, "qwen2", e), E_INPUT, "merges.txt:2: ");
    vocab_refused(dir);
    vocab_read(dir);
    vocab_grows(dir);
    CHECK_OK(remove_tree(dir, e));
    return test_end();
}
