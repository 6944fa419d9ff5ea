#include "model/chat.h"

#include <string.h>

/*
 * Recognition. A template is brought into one spelling: comments, blanks outside literals and the dashes of trimming tags dropped, "x" ->
 * 'x', real newlines in literals -> \n, m['role'] -> m.role, 'a'+'b' -> 'ab'. Short templates must then be equal to a known text. Long ones
 * (with tools) must hold all the parts that decide what a chat without tools looks like, as often as the known template does, and none that
 * would change it.
 */
static bool starts(const char *p, const char *what)
{
    return !strncmp(p, what, strlen(what));
}

static bool is_blank(char c)
{
    return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

/* ['name'] at p: appends .name and returns what follows, or NULL. */
static const char *index_as_dot(const char *p, struct str *out)
{
    if (p[0] != '[' || (p[1] != '\'' && p[1] != '"'))
        return NULL;
    size_t n = strspn(p + 2, "abcdefghijklmnopqrstuvwxyz_");
    if (!n || p[2 + n] != p[1] || p[3 + n] != ']')
        return NULL;
    str_putc(out, '.');
    str_add(out, p + 2, n);
    return p + 4 + n;
}

/* A string literal at p (its quote); returns what follows. */
static const char *literal(const char *p, struct str *out)
{
    char quote = *p++;
    if (out->len >= 2 && out->p[out->len - 1] == '+' && out->p[out->len - 2] == '\'') {
        out->len -= 2;
        out->p[out->len] = 0;
    } else {
        str_putc(out, '\'');
    }
    for (; *p && *p != quote; p++) {
        if (*p == '\\' && p[1]) {
            if (p[1] != '"') /* \" needs no backslash between single quotes */
                str_putc(out, '\\');
            str_putc(out, *++p);
        } else if (*p == '\n') {
            str_puts(out, "\\n");
        } else {
            if (*p == '\'')
                str_putc(out, '\\');
            str_putc(out, *p);
        }
    }
    str_putc(out, '\'');
    return *p ? p + 1 : p;
}

static void one_spelling(const char *p, struct str *out)
{
    bool tag = false;
    while (*p) {
        const char *q;
        if (!tag && starts(p, "{#")) {
            q = strstr(p, "#}");
            p = q ? q + 2 : p + strlen(p);
        } else if (!tag && (starts(p, "{%") || starts(p, "{{"))) {
            tag = true;
            str_add(out, p, 2);
            p += 2 + (p[2] == '-');
        } else if (tag && (starts(p, "-%}") || starts(p, "-}}"))) {
            p++;
        } else if (tag && (starts(p, "%}") || starts(p, "}}"))) {
            tag = false;
            str_add(out, p, 2);
            p += 2;
        } else if (tag && (*p == '\'' || *p == '"')) {
            p = literal(p, out);
        } else if (tag && (q = index_as_dot(p, out)) != NULL) {
            p = q;
        } else {
            if (!is_blank(*p))
                str_putc(out, *p);
            p++;
        }
    }
}

#define SMOLLM2_SYSTEM "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
#define QWEN2_SYSTEM "You are a helpful assistant."
#define QWEN25_SYSTEM "You are Qwen, created by Alibaba Cloud. You are a helpful assistant."

#define LOOP "{%formessageinmessages%}"
#define TURN "{{'<|im_start|>'+message.role+'\\n'+message.content+'<|im_end|>\\n'}}"
#define CHATML_END "{%endfor%}{%ifadd_generation_prompt%}{{'<|im_start|>assistant\\n'}}{%endif%}"
#define FIRST(s) "{%ifloop.firstandmessages[0].role!='system'%}{{'<|im_start|>system\\n" s "<|im_end|>\\n'}}{%endif%}"

struct exact {
    enum chat_kind kind;
    const char *text;
};
static const struct exact exacts[] = {
    {CHAT_CHATML, LOOP TURN CHATML_END},
    {CHAT_CHATML, "{%ifnotadd_generation_promptisdefined%}{%setadd_generation_prompt=false%}{%endif%}" LOOP TURN CHATML_END},
    {CHAT_SMOLLM2, LOOP FIRST(SMOLLM2_SYSTEM) TURN CHATML_END},
    {CHAT_QWEN2, LOOP FIRST(QWEN2_SYSTEM) TURN CHATML_END},
    {CHAT_LLAMA3, "{%setloop_messages=messages%}{%formessageinloop_messages%}"
                  "{%setcontent='<|start_header_id|>'+message.role+'<|end_header_id|>\\n\\n'+message.content|trim+'<|eot_id|>'%}"
                  "{%ifloop.index0==0%}{%setcontent=bos_token+content%}{%endif%}{{content}}{%endfor%}"
                  "{%ifadd_generation_prompt%}{{'<|start_header_id|>assistant<|end_header_id|>\\n\\n'}}{%endif%}"},
};

struct part {
    const char *text;
    int times; /* exactly; 0: must not be there */
};
struct shape {
    enum chat_kind kind;
    struct part part[12];
};

/* clang-format off */
#define QWEN_TURN "{{'<|im_start|>'+message.role+'\\n'+message.content+'<|im_end|>\\n'}}"
#define QWEN25_PARTS(sys)                                                                                                       \
    {"{{'<|im_start|>system\\n'+messages[0].content+'<|im_end|>\\n'}}{%else%}"                                                  \
     "{{'<|im_start|>system\\n" sys "<|im_end|>\\n'}}{%endif%}{%endif%}", 1},                                                   \
    {"{%if(message.role=='user')or(message.role=='system'andnotloop.first)or(message.role=='assistant'andnotmessage.tool_calls)%}" \
     QWEN_TURN, 1},                                                                                                             \
    {"{%endfor%}{%ifadd_generation_prompt%}{{'<|im_start|>assistant\\n'}}{%endif%}", 1},                                        \
    {"<|im_start|>system", 3}, {"<|im_start|>assistant", 1}, {"<|im_start|>'+", 2}, {"think", 0}
#define LLAMA_PARTS                                                                                                             \
    {"{%setsystem_message=messages[0].content|trim%}{%setmessages=messages[1:]%}{%else%}{%setsystem_message=''%}{%endif%}", 1}, \
    {"{{'Cutting Knowledge Date: December 2023\\n'}}{{'Today Date: '+date_string+'\\n\\n'}}", 1},                               \
    {"{{system_message}}{{'<|eot_id|>'}}", 1},                                                                                  \
    {"{{'<|start_header_id|>'+message.role+'<|end_header_id|>\\n\\n'+message.content|trim+'<|eot_id|>'}}", 1},                  \
    {"{%ifadd_generation_prompt%}{{'<|start_header_id|>assistant<|end_header_id|>\\n\\n'}}{%endif%}", 1},                       \
    {"<|start_header_id|>system", 1}, {"'26 Jul 2024'", 1}

static const struct shape shapes[] = {
    {CHAT_QWEN25, {QWEN25_PARTS(QWEN25_SYSTEM)}},
    {CHAT_QWEN25_BASE, {QWEN25_PARTS(QWEN2_SYSTEM)}},
    {CHAT_QWEN3, {
        {"{%ifmessages[0].role=='system'%}{{'<|im_start|>system\\n'+messages[0].content+'<|im_end|>\\n'}}{%endif%}{%endif%}", 1},
        {"multi_step_tool=true", 1},
        {"{%if(message.role=='user')or(message.role=='system'andnotloop.first)%}", 1},
        {".split('</think>')[-1].lstrip('\\n')", 1},
        {".split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n')", 1},
        {"{%ifloop.index0>ns.last_query_index%}{%ifloop.lastor(notloop.lastandreasoning_content)%}", 1},
        {"'\\n<think>\\n'+reasoning_content.strip('\\n')+'\\n</think>\\n\\n'+content.lstrip('\\n')}}", 1},
        {"{%ifadd_generation_prompt%}{{'<|im_start|>assistant\\n'}}{%ifenable_thinkingisdefinedandenable_thinkingisfalse%}"
         "{{'<think>\\n\\n</think>\\n\\n'}}{%endif%}{%endif%}", 1},
        {"<|im_start|>system", 2}}},
    {CHAT_LLAMA31, {LLAMA_PARTS, {"strftime_now", 0}}},
    {CHAT_LLAMA32, {LLAMA_PARTS, {"strftime_now('%d %b %Y')", 1}}},
};
/* clang-format on */

static int times(const char *p, const char *what)
{
    int n = 0;
    for (size_t len = strlen(what); (p = strstr(p, what)) != NULL; p += len)
        n++;
    return n;
}

enum chat_kind chat_detect(const char *template_text)
{
    enum chat_kind kind = CHAT_UNKNOWN;
    struct str s = STR_INIT;
    if (!template_text || !*template_text)
        return CHAT_NONE;
    one_spelling(template_text, &s);
    for (size_t i = 0; i < ARRAY_LEN(exacts); i++)
        if (!strcmp(str_c(&s), exacts[i].text))
            kind = exacts[i].kind;
    for (size_t i = 0; i < ARRAY_LEN(shapes) && kind == CHAT_UNKNOWN; i++) {
        bool all = true;
        for (size_t k = 0; k < ARRAY_LEN(shapes[i].part) && shapes[i].part[k].text && all; k++)
            all = times(str_c(&s), shapes[i].part[k].text) == shapes[i].part[k].times;
        if (all)
            kind = shapes[i].kind;
    }
    if (s.failed)
        kind = CHAT_UNKNOWN;
    str_free(&s);
    return kind;
}

static const char *const names[] = {"none",        "unknown", "chatml", "smollm2", "qwen2",  "qwen25",
                                    "qwen25-base", "qwen3",   "llama3", "llama31", "llama32"};

const char *chat_name(enum chat_kind kind)
{
    return names[kind];
}

bool chat_by_name(const char *name, enum chat_kind *kind)
{
    for (size_t i = CHAT_CHATML; i < ARRAY_LEN(names); i++)
        if (!strcmp(names[i], name)) {
            *kind = (enum chat_kind)i;
            return true;
        }
    return false;
}

/* ---- rendering ---- */

struct span {
    const char *p;
    size_t n;
};

static struct span span_of(const char *s)
{
    return (struct span){s, strlen(s)};
}

/* Characters that Python's str.strip() drops. */
static bool py_space(uint32_t c)
{
    return (c >= 9 && c <= 13) || (c >= 28 && c <= 32) || c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) ||
           c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

static struct span trim(struct span s)
{
    int len;
    bool bad = false;
    while (s.n && py_space(utf8_next(s.p, s.n, &len, &bad))) {
        s.p += len;
        s.n -= (size_t)len;
    }
    while (s.n) {
        size_t i = s.n - 1;
        while (i > 0 && ((unsigned char)s.p[i] & 0xC0) == 0x80)
            i--;
        if (!py_space(utf8_next(s.p + i, s.n - i, &len, &bad)))
            break;
        s.n = i;
    }
    return s;
}

static struct span trim_newlines(struct span s, bool left, bool right)
{
    for (; left && s.n && *s.p == '\n'; s.p++)
        s.n--;
    while (right && s.n && s.p[s.n - 1] == '\n')
        s.n--;
    return s;
}

static void turn(struct str *out, const char *role, struct span content)
{
    str_printf(out, "<|im_start|>%s\n", role);
    str_add(out, content.p, content.n);
    str_puts(out, "<|im_end|>\n");
}

static void chatml(const char *default_system, const struct chat_msg *m, size_t n, struct str *out)
{
    if (default_system && n && strcmp(m[0].role, "system") != 0)
        turn(out, "system", span_of(default_system));
    for (size_t i = 0; i < n; i++)
        turn(out, m[i].role, span_of(m[i].content));
}

/* The last user turn that is no tool's answer; without one, the last message. */
static size_t last_query(const struct chat_msg *m, size_t n)
{
    static const char open[] = "<tool_response>", close[] = "</tool_response>";
    for (size_t i = n; i-- > 0;) {
        size_t len = strlen(m[i].content), nc = sizeof close - 1;
        bool answer = starts(m[i].content, open) && len >= nc && !strcmp(m[i].content + len - nc, close);
        if (!strcmp(m[i].role, "user") && !answer)
            return i;
    }
    return n - 1;
}

static struct span until(const char *from, const char *to)
{
    return (struct span){from, (size_t)(to - from)};
}

/* One assistant turn of Qwen3: reasoning is what stands before the first </think>, content what stands after the last one. */
static void qwen3_assistant(const char *text, bool after_query, bool last, struct str *out)
{
    static const char open[] = "<think>", close[] = "</think>";
    struct span content = span_of(text), think = {"", 0};
    const char *first = strstr(text, close);
    if (first) {
        const char *end = first, *from = text;
        for (const char *q = first; q; q = strstr(q + 1, close))
            end = q + sizeof close - 1;
        content = trim_newlines(span_of(end), true, false);
        think = trim_newlines(until(text, first), false, true);
        const char *stop = think.p + think.n;
        for (const char *q = strstr(text, open); q && q + sizeof open - 1 <= stop; q = strstr(q + 1, open))
            from = q + sizeof open - 1;
        think = trim_newlines(until(from, stop), true, false);
    }
    str_puts(out, "<|im_start|>assistant\n");
    if (after_query && (last || think.n)) {
        think = trim_newlines(think, true, true);
        str_puts(out, "<think>\n");
        str_add(out, think.p, think.n);
        str_puts(out, "\n</think>\n\n");
        content = trim_newlines(content, true, false);
    }
    str_add(out, content.p, content.n);
    str_puts(out, "<|im_end|>\n");
}

static void qwen3(const struct chat_msg *m, size_t n, struct str *out)
{
    size_t query = last_query(m, n);
    for (size_t i = 0; i < n; i++)
        if (!strcmp(m[i].role, "assistant"))
            qwen3_assistant(m[i].content, i > query, i + 1 == n, out);
        else
            turn(out, m[i].role, span_of(m[i].content));
}

static void llama_turn(struct str *out, const char *role, struct span content)
{
    str_printf(out, "<|start_header_id|>%s<|end_header_id|>\n\n", role);
    content = trim(content);
    str_add(out, content.p, content.n);
    str_puts(out, "<|eot_id|>");
}

static void llama3(bool dates, const struct chat_msg *m, size_t n, struct str *out)
{
    size_t i = 0;
    str_puts(out, "<|begin_of_text|>");
    if (dates) {
        struct span system = {"", 0};
        if (!strcmp(m[0].role, "system"))
            system = trim(span_of(m[i++].content));
        str_puts(out, "<|start_header_id|>system<|end_header_id|>\n\nCutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\n");
        str_add(out, system.p, system.n);
        str_puts(out, "<|eot_id|>");
    }
    for (; i < n; i++)
        llama_turn(out, m[i].role, span_of(m[i].content));
}

/* The templates with tools treat other roles in ways of their own (dropped, wrapped, quoted as JSON). */
static int check_roles(enum chat_kind kind, const struct chat_msg *m, size_t n, struct err *e)
{
    bool any = kind == CHAT_CHATML || kind == CHAT_SMOLLM2 || kind == CHAT_QWEN2 || kind == CHAT_LLAMA3;
    if (n == 0)
        return ERR(e, E_USAGE, "a chat needs at least one message");
    for (size_t i = 0; i < n && !any; i++)
        if (strcmp(m[i].role, "system") != 0 && strcmp(m[i].role, "user") != 0 && strcmp(m[i].role, "assistant") != 0)
            return ERR(e, E_USAGE,
                       "message %zu has the role '%.40s': chat template '%s' is known here for system, user and assistant alone", i,
                       m[i].role, chat_name(kind));
    return 0;
}

int chat_render(enum chat_kind kind, const struct chat_msg *m, size_t n, bool add_generation_prompt, struct str *out, struct err *e)
{
    bool llama = kind == CHAT_LLAMA3 || kind == CHAT_LLAMA31 || kind == CHAT_LLAMA32;
    if (kind == CHAT_NONE)
        return ERR(e, E_USAGE, "this model has no chat template");
    if (kind == CHAT_UNKNOWN)
        return ERR(
            e, E_USAGE,
            "this model's chat template is not one of those known here (chatml, smollm2, qwen2, qwen25, qwen3, llama3, llama31, llama32)");
    TRY(check_roles(kind, m, n, e));
    switch (kind) {
    case CHAT_NONE:
    case CHAT_UNKNOWN:
        break;
    case CHAT_CHATML:
        chatml(NULL, m, n, out);
        break;
    case CHAT_SMOLLM2:
        chatml(SMOLLM2_SYSTEM, m, n, out);
        break;
    case CHAT_QWEN2:
    case CHAT_QWEN25_BASE:
        chatml(QWEN2_SYSTEM, m, n, out);
        break;
    case CHAT_QWEN25:
        chatml(QWEN25_SYSTEM, m, n, out);
        break;
    case CHAT_QWEN3:
        qwen3(m, n, out);
        break;
    case CHAT_LLAMA3:
    case CHAT_LLAMA31:
    case CHAT_LLAMA32:
        llama3(kind != CHAT_LLAMA3, m, n, out);
        break;
    }
    if (add_generation_prompt)
        str_puts(out, llama ? "<|start_header_id|>assistant<|end_header_id|>\n\n" : "<|im_start|>assistant\n");
    return str_ok(out, "chat", e);
}
