/* Chat templates: which one a text is, and what it renders, against Jinja's own renderings (tests/oracle/chat_vectors.py). */
#include "tests/test.h"

#include "core/jread.h"
#include "model/chat.h"

enum { MAX_MSGS = 8 };

static size_t read_chat(const json_t *chat, struct chat_msg m[MAX_MSGS])
{
    size_t n = json_array_size(chat);
    for (size_t i = 0; i < n && i < MAX_MSGS; i++)
        m[i] = (struct chat_msg){json_string_value(json_array_get(json_array_get(chat, i), 0)),
                                 json_string_value(json_array_get(json_array_get(chat, i), 1))};
    return n;
}

static void vectors(const struct jdoc *d)
{
    const json_t *chats = json_object_get(d->root, "chats"), *kinds = json_object_get(d->root, "kinds");
    CHECK(json_array_size(chats) >= 15 && json_array_size(kinds) >= 10);
    for (size_t k = 0; k < json_array_size(kinds); k++) {
        const json_t *o = json_array_get(kinds, k);
        char name[32];
        enum chat_kind kind = CHAT_NONE;
        snprintf(name, sizeof name, "%s", json_string_value(json_object_get(o, "kind")));
        if (strlen(name) > 2 && name[strlen(name) - 2] == '-') /* chatml-2: another template of one kind */
            name[strlen(name) - 2] = 0;
        CHECK(chat_by_name(name, &kind));
        const char *text = json_string_value(json_object_get(o, "template"));
        if (*text)
            CHECK_STR(chat_name(chat_detect(text)), name);
        for (size_t i = 0; i < json_array_size(chats); i++)
            for (int gen = 0; gen < 2; gen++) {
                struct chat_msg m[MAX_MSGS];
                struct str s = STR_INIT;
                size_t n = read_chat(json_array_get(chats, i), m);
                CHECK_OK(chat_render(kind, m, n, gen != 0, &s, e));
                CHECK_STR(str_c(&s), json_string_value(json_array_get(json_array_get(json_object_get(o, "text"), i), (size_t)gen)));
                str_free(&s);
            }
    }
}

/* What decides a Llama 3.1 chat without tools, in our own words around it; date: how the date is set. */
static void llama_template(struct str *s, const char *date)
{
    str_printf(
        s,
        "{{- bos_token }}\n%s\n{#- system #}\n{%%- if messages[0]['role'] == 'system' %%}\n{%%- set system_message = "
        "messages[0]['content']|trim %%}\n"
        "{%%- set messages = messages[1:] %%}{%%- else %%}{%%- set system_message = \"\" %%}{%%- endif %%}\n"
        "{{- \"<|start_header_id|>system<|end_header_id|>\\n\\n\" }}{{- \"Cutting Knowledge Date: December 2023\\n\" }}\n"
        "{{- \"Today Date: \" + date_string + \"\\n\\n\" }}{{- system_message }}{{- \"<|eot_id|>\" }}{%%- for message in messages %%}"
        "{{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'+ message['content'] | trim + '<|eot_id|>' }}{%%- endfor "
        "%%}\n"
        "{%%- if add_generation_prompt %%}\n  {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}\n{%%- endif %%}\n",
        date);
}

static void detection(const struct jdoc *d)
{
    struct str s = STR_INIT;
    CHECK(chat_detect(NULL) == CHAT_NONE && chat_detect("") == CHAT_NONE && chat_detect("{{ messages }}") == CHAT_UNKNOWN);
    llama_template(&s, "{%- if not date_string is defined %}{%- set date_string = \"26 Jul 2024\" %}{%- endif %}");
    CHECK(chat_detect(str_c(&s)) == CHAT_LLAMA31);
    str_clear(&s);
    llama_template(&s, "{%- if not date_string is defined %}{%- if strftime_now is defined %}{%- set date_string = strftime_now(\"%d %b "
                       "%Y\") %}{%- else %}"
                       "{%- set date_string = \"26 Jul 2024\" %}{%- endif %}{%- endif %}");
    CHECK(chat_detect(str_c(&s)) == CHAT_LLAMA32);
    str_clear(&s);
    llama_template(&s, "{%- set date_string = \"27 Jul 2024\" %}");
    CHECK(chat_detect(str_c(&s)) == CHAT_UNKNOWN);
    /* A changed word in any part that is rendered makes a template another one. */
    const json_t *kinds = json_object_get(d->root, "kinds");
    static const char *const words[] = {"<|im_end|>", "assistant\n", "system", "message.content", "add_generation_prompt", "<think>"};
    for (size_t k = 0; k < json_array_size(kinds); k++)
        for (size_t w = 0; w < ARRAY_LEN(words); w++) {
            const char *text = json_string_value(json_object_get(json_array_get(kinds, k), "template")), *last = NULL;
            for (const char *q = text; (q = strstr(q, words[w])) != NULL; q++)
                last = q;
            if (!last)
                continue;
            str_clear(&s);
            str_add(&s, text, (size_t)(last - text));
            str_puts(&s, "X");
            str_puts(&s, last + strlen(words[w]));
            enum chat_kind was = chat_detect(text), is = chat_detect(str_c(&s));
            /* The last of these words may stand in a part for tools, which is not looked at in the templates that have one. */
            CHECK(is == CHAT_UNKNOWN || (is == was && strstr(text, "tools")));
        }
    /* Unclosed tags and literals end. */
    CHECK(chat_detect("{{ 'abc") == CHAT_UNKNOWN && chat_detect("{# abc") == CHAT_UNKNOWN && chat_detect("{% a['b") == CHAT_UNKNOWN &&
          chat_detect("{{ 'a\\") == CHAT_UNKNOWN);
    str_free(&s);
}

int main(void)
{
    struct jdoc d;
    struct str s = STR_INIT;
    const struct chat_msg user = {"user", "a"}, tool = {"tool", "a"};
    CHECK_OK(jdoc_load(&d, "tests/data/chat_vectors.json", 0, e));
    vectors(&d);
    detection(&d);
    jdoc_free(&d);
    CHECK_ERR(chat_render(CHAT_NONE, &user, 1, true, &s, e), E_USAGE, "has no chat template");
    CHECK_ERR(chat_render(CHAT_UNKNOWN, &user, 1, true, &s, e), E_USAGE, "is not one of those known here");
    CHECK_ERR(chat_render(CHAT_QWEN25, NULL, 0, true, &s, e), E_USAGE, "at least one message");
    CHECK_ERR(chat_render(CHAT_QWEN25, &tool, 1, true, &s, e), E_USAGE, "message 0 has the role 'tool'");
    CHECK(s.len == 0);
    str_free(&s);
    return test_end();
}
