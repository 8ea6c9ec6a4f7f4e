#include "cli/command.h"

int main(int argc, char** argv) { return inflight::cli::run_program(argc, argv); }
