/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* What our programs read of the kernel's own structures: only these fields, found
 * in the running kernel by its BTF (CO-RE), whatever lies around them there.
 * A program on tp_btf, fentry or fexit reads them directly; one on a kprobe or a
 * raw tracepoint by READ(). */
#pragma once

#include "kernel.h"

#define CO_RE __attribute__((preserve_access_index))

struct ns_common {
	unsigned int inum; /* inode of /proc/PID/ns/net */
} CO_RE;

struct net {
	struct ns_common ns;
} CO_RE;

typedef struct {
	struct net *net;
} CO_RE possible_net_t;

struct net_device {
	int ifindex;
	possible_net_t nd_net;
} CO_RE;

struct sock_common {
	unsigned short skc_family;
	possible_net_t skc_net;
} CO_RE;

struct sock {
	struct sock_common __sk_common;
} CO_RE;

struct sk_buff {
	/* In a socket's queue the place holds other things (dev_scratch). */
	struct net_device *dev;
	struct sock *sk;
	unsigned int len;
	int skb_iif;
	__u32 mark;
	__be16 protocol;
	__u16 transport_header;
	__u16 network_header;
	__u16 mac_header;
	unsigned int tail; /* where the data at head ends: an offset on 64-bit kernels */
	unsigned char *head;
} CO_RE;

/* READ is a field behind a pointer that the verifier does not know. */
#define READ(pointer, field)                                                                  \
	({                                                                                    \
		typeof((pointer)->field) value_ = {0};                                        \
		bpf_probe_read_kernel(&value_, sizeof(value_),                                \
				      __builtin_preserve_access_index(&(pointer)->field));    \
		value_;                                                                       \
	})
