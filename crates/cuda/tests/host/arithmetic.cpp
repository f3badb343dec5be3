// Computes a function of numbers from standard input, to standard output: `arithmetic NAME` reads pairs of numbers, of which
// functions of one number use the first.

#include "built_in.h"
#include "scalar.cuh"
#include <stdio.h>
#include <vector>

template <typename T> static int answer(T (*function)(T, T)) {
    std::vector<T> numbers;
    T pair[2];
    while (fread(pair, sizeof(T), 2, stdin) == 2) numbers.push_back(function(pair[0], pair[1]));
    return fwrite(numbers.data(), sizeof(T), numbers.size(), stdout) == numbers.size() ? 0 : 1;
}

int main(int, char **arguments) {
#define UNARY(NUMBER, NAME)                                                                                                           \
    if (!strcmp(arguments[1], #NAME)) return answer<NUMBER>([](NUMBER a, NUMBER) { return NAME(a); });
#define BINARY(NUMBER, NAME)                                                                                                          \
    if (!strcmp(arguments[1], #NAME)) return answer<NUMBER>([](NUMBER a, NUMBER b) { return NAME(a, b); });
#include "functions.h"
    return 2;
}
