/*
 * Chat templates. Models carry a Jinja program; a fixed set of them is recognised by content and rendered by own code (no tools, no
 * images). An unknown template is an error only when a chat is rendered. Rendered text holds special tokens as text: encode it with
 * parse_special = true and without another BOS.
 *
 * - qwen2 and qwen25-base (the template of Qwen2.5's base models) put "You are a helpful assistant." before a chat without system message,
 * qwen25 the sentence that names Qwen and Alibaba Cloud, smollm2 its own; qwen3, llama3 and plain chatml add none.
 * - llama31, llama32: the templates print dates. "Today Date" is the templates' own default, 26 Jul 2024, never the clock (3.2's template
 * asks the clock where the host gives it one); Cutting Knowledge Date: December 2023.
 * - Llama's templates trim messages (Python's str.strip), the others do not. They begin with <|begin_of_text|>.
 * - Roles other than system, user and assistant are refused where the template treats them in a way of its own (tools).
 * - qwen3: <think> blocks of assistant turns before the last user turn are left out, later ones are written in full; thinking is on, so the
 *   generation prompt is bare.
 */
#ifndef MODEL_CHAT_H
#define MODEL_CHAT_H

#include "core/err.h"
#include "core/str.h"

enum chat_kind {
    CHAT_NONE,
    CHAT_UNKNOWN,
    CHAT_CHATML,
    CHAT_SMOLLM2,
    CHAT_QWEN2,
    CHAT_QWEN25,
    CHAT_QWEN25_BASE,
    CHAT_QWEN3,
    CHAT_LLAMA3,
    CHAT_LLAMA31,
    CHAT_LLAMA32
};

struct chat_msg {
    const char *role; /* "system", "user", "assistant" (others as the template treats them) */
    const char *content;
};

/* NULL or "" is CHAT_NONE. */
enum chat_kind chat_detect(const char *template_text);
const char *chat_name(enum chat_kind kind);
/* By name ("chatml", "qwen25", ...); false when there is no such kind. */
bool chat_by_name(const char *name, enum chat_kind *kind);
/* Appends the rendering. E_USAGE for CHAT_NONE and CHAT_UNKNOWN and for message orders that the template refuses. */
int chat_render(enum chat_kind kind, const struct chat_msg *msgs, size_t n, bool add_generation_prompt, struct str *out, struct err *e);

#endif
