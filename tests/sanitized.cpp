// What a sanitized test program is told at its start: leaks are looked for, and the first fault ends it.
extern "C" {
const char* __asan_default_options() { return "detect_leaks=1:strict_string_checks=1"; }
const char* __ubsan_default_options() { return "print_stacktrace=1:halt_on_error=1"; }
}
