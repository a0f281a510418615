/* test_prompt_clean.c -- prompts come out as Wan's original cleans them (ftfy 6, html.unescape twice, white space). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "pipelines/prompt_clean.h"

static void test_texts(void **state)
{
    (void)state;
    static const char *const rows[][2] = {
        {"A cat and a dog baking a cake  together &amp; laughing",
         "A cat and a dog baking a cake together & laughing"},
        {"", ""},
        {" \t\n ", ""},
        {"  a\n\nb\t c  ", "a b c"},
        {"&amp;lt;b&amp;gt; &#233;&#xe9; &quot;x&quot;", "<b> \xc3\xa9\xc3\xa9 \"x\""},
        {"&amp;amp;amp; stays one", "&amp; stays one"},
        {"&nosuch; & &; &#; &#x; &#12a;", "&nosuch; & &; &#; &#x; &#12a;"},
        {"&#0;&#55296;&#1114112;", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"},
        {"\xe2\x80\x9cquoted\xe2\x80\x9d it\xe2\x80\x99s", "\"quoted\" it's"},
        {"\xef\xac\x81ne \xef\xac\x84ow", "fine fflow"},
        {"\xef\xbc\xa1\xef\xbc\xa2\xe3\x80\x80\xef\xbc\x91", "AB 1"},
        {"e\xcc\x81 o\xcc\x88", "\xc3\xa9 \xc3\xb6"},
        {"a\xc2\xa0\xe2\x80\x83z", "a z"},
        {"\xef\xbb\xbfmark and\x01 control\x7f", "mark and control"},
        {"bad \xff byte", "bad \xef\xbf\xbd byte"},
        {"\xe4\xb8\x80\xe5\x8f\xaa\xe7\xba\xa2\xe8\x89\xb2",
         "\xe4\xb8\x80\xe5\x8f\xaa\xe7\xba\xa2\xe8\x89\xb2"},
    };
    oq_env *env = NULL;
    oq_arena arena;
    assert_int_equal(oq_env_new(NULL, &env), OQ_OK);
    oq_arena_init(&arena, env);
    for (size_t i = 0; i < OQ_COUNT(rows); i++) {
        char *out = NULL;
        assert_int_equal(oq_prompt_clean(env, &arena, rows[i][0], &out), OQ_OK);
        assert_string_equal(out, rows[i][1]);
    }
    oq_arena_deinit(&arena);
    oq_env_free(env);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_texts)};
    return cmocka_run_group_tests_name("prompt_clean", tests, NULL, NULL);
}
