// The program `pipewright`.
#include "program.hpp"

int main(int argc, char** argv) { return pipewright::cli::run_program(argc, argv); }
