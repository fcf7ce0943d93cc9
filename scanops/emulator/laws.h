// Both sides of an operator's laws, which check_operator compares. templates/laws.j2 includes this file.
#pragma once

namespace scanops_emulator {

template <class Item, class Result>
struct Laws {  // as scanops/operator_checks.py fills it
    const Item* input;
    const int* begins;  // of three ranges of elements for each test, one after the other; and the end of the last
    Result* left;       // the result of the left side of the law, for each test
    Result* right;
    double* fields;     // of the state of the first range, for each test
    long long tests;
    long long law;   // 0, 1: identity on the left, on the right; 2: associativity; 3: commutativity
    long long base;  // added to the indices of elements

    // element(k): the state of an element; store(state, test): store the fields of a state.
    template <class State, class Combine, class Element, class OutputOf, class Store>
    void test(State identity, Combine combine, Element element, OutputOf output_of, Store store) const {
        for (long long test = 0; test < tests; ++test) {
            State s[3];
            for (int part = 0; part < 3; ++part) {
                int k = begins[3 * test + part];
                s[part] = element(k);
                while (++k < begins[3 * test + part + 1]) s[part] = combine(s[part], element(k));
            }
            State sides[4][2] = {
                {combine(identity, s[0]), s[0]},
                {combine(s[0], identity), s[0]},
                {combine(combine(s[0], s[1]), s[2]), combine(s[0], combine(s[1], s[2]))},
                {combine(s[0], s[1]), combine(s[1], s[0])},
            };
            left[test] = output_of(sides[law][0]);
            right[test] = output_of(sides[law][1]);
            store(s[0], test);
        }
    }
};

}  // namespace scanops_emulator
