package unconfirmed

//go:generate go tool bpf2go -cc clang-19 -strip llvm-strip-19 -cflags "-O2 -Wall -Wextra -Wno-unused-parameter -Werror -mcpu=v2" -type connection -target bpfel unconfirmed unconfirmed.bpf.c
