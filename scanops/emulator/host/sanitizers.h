// The handlers that code compiled with -fsanitize=bounds-strict,alignment,float-cast-overflow calls, the first two
// without -fsanitize-recover: they do not return. Hidden, so that
// each library has its own and a libubsan in the process stays out of it. The records are g++'s, as libubsan reads them.
#pragma once

#include "report.h"

namespace scanops_emulator {
namespace {

struct SourceLocation {
    const char* file;
    unsigned line, column;
};

struct TypeDescriptor {
    unsigned short kind;
    unsigned short info;  // of an integer: bit 0 says signed, the others are log2 of its bits
    char name[1];         // quoted, and longer than this
};

struct OutOfBounds {
    SourceLocation place;
    const TypeDescriptor* array;
    const TypeDescriptor* index;
};

struct TypeMismatch {
    SourceLocation place;
    const TypeDescriptor* type;
    unsigned char log2_alignment;
    unsigned char access;
};

struct FloatCastOverflow {
    SourceLocation place;
    const TypeDescriptor* from;
    const TypeDescriptor* to;
};

constexpr const char* access_name[] = {"load of", "store to", "reference to", "member access in", "member call on",
                                       "constructor call on", "downcast of", "downcast of", "upcast of",
                                       "cast to a virtual base of", "cast of"};

// Indices of up to 64 bits travel in the handle itself.
long long index_value(const TypeDescriptor& type, const void* handle) {
    const unsigned bits = 1u << (type.info >> 1);
    const size_t word = reinterpret_cast<size_t>(handle);
    if ((type.info & 1) == 0 || bits >= 64) return static_cast<long long>(word);
    const unsigned unused = 64 - bits;
    return static_cast<long long>(word << unused) >> unused;
}

void begin_sanitizer_report(const SourceLocation& place) {
    report_length = 0;
    if (grid.running)
        append_place(*current, static_cast<int>(place.line));
    else
        append("host code, line %u: ", place.line);
    const char* name = place.file;
    for (const char* letter = place.file; *letter != 0; ++letter)
        if (*letter == '/') name = letter + 1;
    append("%s:%u:%u: ", name, place.line, place.column);
}

[[noreturn]] void end_sanitizer_report() {
    if (grid.running) stop_launch();
    fprintf(stderr, "%s\n", report_text);
    abort();
}

[[noreturn, gnu::cold, gnu::noinline]] void report_out_of_bounds(const OutOfBounds& data,
                                                                               const void* index) {
    begin_sanitizer_report(data.place);
    append("index %lld is out of bounds of the array %s", index_value(*data.index, index), data.array->name);
    end_sanitizer_report();
}

[[noreturn, gnu::cold, gnu::noinline]] void report_type_mismatch(const TypeMismatch& data,
                                                                               const void* address) {
    begin_sanitizer_report(data.place);
    append("%s address %p, misaligned: %s needs a multiple of %u",
           data.access < sizeof access_name / sizeof *access_name ? access_name[data.access] : "access to", address,
           data.type->name, 1u << data.log2_alignment);
    end_sanitizer_report();
}

// Numbers of up to 64 bits travel in the handle itself.
double number_value(const TypeDescriptor& type, const void* handle) {
    float single;
    double number;
    memcpy(&single, &handle, sizeof single);
    memcpy(&number, &handle, sizeof number);
    return type.info == 32 ? single : number;
}

// A negative number in an unsigned type is 0 on a GPU and wraps around on most CPUs. What else is out of bounds (NaN,
// infinities, great numbers) differs as well, but torch's own conversions give it no meaning either.
[[gnu::cold, gnu::noinline]] void report_float_cast_overflow(const FloatCastOverflow& data, const void* handle) {
    const double number = number_value(*data.from, handle);
    if (data.to->info & 1 || data.to->kind != 0 || !(number < 0 && number > -__builtin_inf())) return;
    begin_sanitizer_report(data.place);
    append("%g is converted to %s, where a GPU gives 0 and a CPU another number", number, data.to->name);
    end_sanitizer_report();
}

}  // namespace
}  // namespace scanops_emulator

#define SCANOPS_HANDLER(name, record, report)                                                             \
    extern "C" __attribute__((visibility("hidden"), used)) void name(void* data, void* value) {           \
        scanops_emulator::report(*static_cast<const scanops_emulator::record*>(data), value);             \
    }
SCANOPS_HANDLER(__ubsan_handle_out_of_bounds_abort, OutOfBounds, report_out_of_bounds)
SCANOPS_HANDLER(__ubsan_handle_type_mismatch_v1_abort, TypeMismatch, report_type_mismatch)
SCANOPS_HANDLER(__ubsan_handle_float_cast_overflow, FloatCastOverflow, report_float_cast_overflow)
#undef SCANOPS_HANDLER
