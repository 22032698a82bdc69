package drops

//go:generate go tool bpf2go -cc clang-19 -strip llvm-strip-19 -cflags "-O2 -Wall -Wextra -Wno-unused-parameter -Werror -mcpu=v3" -type event -target bpfel  drops drops.bpf.c
