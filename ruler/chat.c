/* The chat templates that RULER ships: what stands before and after a task's text. */
#include <string.h>

#include "ruler/gen.h"

#define PEOPLE                                                                                                                             \
    "A chat between a curious user and an artificial intelligence assistant. The assistant gives helpful, detailed, and polite answers "   \
    "to the user's questions."
static const struct {
    const char *name, *before, *after;
} chats[] = {
    {"base", "", ""},
    {"meta-chat", "[INST] ", " [/INST]"},
    {"vicuna-chat", PEOPLE " USER: ", " ASSISTANT:"},
    {"lwm-chat", "You are a helpful assistant. USER: ", " ASSISTANT: "},
    {"command-r-chat", "<BOS_TOKEN><|START_OF_TURN_TOKEN|><|USER_TOKEN|>", "<|END_OF_TURN_TOKEN|><|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>"},
    {"chatglm-chat", "[gMASK]sop<|user|> \n ", "<|assistant|> \n "},
    {"RWKV",
     "User: hi\n\nAssistant: Hi. I am your assistant and I will provide expert full response in full details. Please feel free to ask any "
     "question and I will "
     "always answer it\n\nUser: ",
     "\n\nAssistant:"},
    {"Phi3", "<|user|>\n", "<|end|>\n<|assistant|>\n"},
    {"meta-llama3", "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\n",
     "<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n"},
    {"jamba", "<|startoftext|><|bom|><|system|> <|eom|><|bom|><|user|> ", "<|eom|><|bom|><|assistant|>"},
    {"nemotron5-instruct", "<SPECIAL_10>System\n\n<SPECIAL_11>User\n", "\n<SPECIAL_11>Assistant\n"},
};

int ruler_chat(const char *name, struct str *before, struct str *after, struct err *e)
{
    static const char slot[] = "{task_template}";
    const char *words[ARRAY_LEN(chats)], *at = strstr(name, slot);
    if (at) {
        str_add(before, name, (size_t)(at - name));
        str_puts(after, at + sizeof slot - 1);
        return 0;
    }
    for (size_t i = 0; i < ARRAY_LEN(chats); i++) {
        words[i] = chats[i].name;
        if (strcmp(chats[i].name, name) != 0)
            continue;
        str_puts(before, chats[i].before);
        str_puts(after, chats[i].after);
        return 0;
    }
    const char *near = nearest_word(name, words, ARRAY_LEN(words));
    return ERR(e, E_USAGE, "unknown chat template '%.80s'%s%s%s; give a name of RULER's (base, meta-llama3, ...) or a text that holds %s",
               name, near ? "; did you mean '" : "", near ? near : "", near ? "'" : "", slot);
}
