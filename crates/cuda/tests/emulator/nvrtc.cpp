// NVRTC for the emulated GPU: compiles kernels for the host, with g++. What it calls a cubin is a shared library.

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <fstream>
#include <regex>
#include <sstream>
#include <string>
#include <vector>

enum Status { SUCCESS = 0, INTERNAL = 11, COMPILATION = 6 };

struct Program {
    std::string text, name, cubin, log;
    std::vector<std::pair<std::string, std::string>> headers;
};

static std::string contents(const std::string &path) {
    std::ifstream file(path, std::ios::binary);
    std::stringstream all;
    all << file.rdbuf();
    return all.str();
}

static void write(const std::string &path, const std::string &text) { std::ofstream(path, std::ios::binary) << text; }

// Where this library lies, and kernel.h beside it.
static std::string folder() {
    Dl_info info;
    dladdr((void *)folder, &info);
    const std::string path = info.dli_fname;
    return path.substr(0, path.rfind('/'));
}

// Dynamic shared memory, and a function by which the driver calls each kernel.
static std::string adapted(const std::string &text) {
    std::string out = std::regex_replace(text, std::regex(R"(extern __shared__ ([\w ]+?) (\w+)\[\];)"), "$1 *$2 = ($1 *)emulator::dynamic_shared;");
    const std::regex kernel(R"re(extern "C" __global__ void\s+(?:__launch_bounds__\([^)]*\)\s+)?(\w+)\((?:(?:const __grid_constant__ )?(\w+) \w+)?\))re");
    std::string more;
    for (std::sregex_iterator found(text.begin(), text.end(), kernel), end; found != end; ++found) {
        const std::string name = (*found)[1], type = (*found)[2], size = type.empty() ? "0" : "sizeof(" + type + ")";
        const std::string call = type.empty() ? name + "();" : name + "(*(const " + type + " *)args);";
        more += "static void call_" + name + "(const void *args) { (void)args; " + call + " }\n";
        more += "extern \"C\" void emulate_" + name + "(const void *args, const unsigned *blocks, const unsigned *threads, unsigned shared) {\n";
        more += "    emulator::run(call_" + name + ", args, blocks, threads, shared);\n}\n";
        more += "extern \"C\" const unsigned long size_of_" + name + " = " + size + ";\n";
    }
    return out + "\n" + more;
}

extern "C" {
int nvrtcVersion(int *major, int *minor) { return *major = 99, *minor = 0, SUCCESS; }
int nvrtcGetNumSupportedArchs(int *count) { return *count = 1, SUCCESS; }
int nvrtcGetSupportedArchs(int *archs) { return *archs = 990, SUCCESS; }
const char *nvrtcGetErrorString(int) { return "the emulated NVRTC failed"; }

int nvrtcCreateProgram(Program **to, const char *text, const char *name, int count, const char *const *bodies, const char *const *names) {
    Program *program = new Program{text, name, "", "", {}};
    for (int i = 0; i < count; ++i) program->headers.push_back({names[i], bodies[i]});
    return *to = program, SUCCESS;
}

int nvrtcDestroyProgram(Program **program) { return delete *program, *program = nullptr, SUCCESS; }

int nvrtcCompileProgram(Program *program, int count, const char *const *options) {
    char place[] = "/tmp/emulated-nvrtc-XXXXXX";
    if (!mkdtemp(place)) return INTERNAL;
    const std::string at = place;
    std::string defines;
    for (int i = 0; i < count; ++i) {
        const std::string option = options[i], prefix = "--define-macro=";
        if (option.rfind(prefix, 0) == 0) defines += " '-D" + option.substr(prefix.size()) + "'";
    }
    for (auto &[name, body] : program->headers) write(at + "/" + name, adapted(body));
    write(at + "/kernel.cpp", "#include \"" + folder() + "/kernel.h\"\n#line 1 \"kernel.cu\"\n" + adapted(program->text));
    const char *flags = getenv("PTERO_EMULATOR_FLAGS");
    const std::string command = "g++ -std=c++20 -O1 -march=native -ffp-contract=off -fno-strict-aliasing -fwrapv -fPIC -shared -w " +
                                std::string(flags ? flags : "") + " -I" + at + defines + " -o " + at + "/kernel.so " + at + "/kernel.cpp 2> " + at + "/log";
    const bool failed = system(command.c_str()) != 0;
    program->log = contents(at + "/log");
    if (!failed) program->cubin = contents(at + "/kernel.so");
    if (!getenv("PTERO_EMULATOR_KEEP")) (void)!system(("rm -r " + at).c_str());
    return failed ? COMPILATION : SUCCESS;
}

int nvrtcGetCUBINSize(Program *program, size_t *size) { return *size = program->cubin.size(), SUCCESS; }
int nvrtcGetCUBIN(Program *program, char *to) { return program->cubin.copy(to, program->cubin.size()), SUCCESS; }
int nvrtcGetProgramLogSize(Program *program, size_t *size) { return *size = program->log.size() + 1, SUCCESS; }
int nvrtcGetProgramLog(Program *program, char *to) { return to[program->log.copy(to, program->log.size())] = 0, SUCCESS; }
}
