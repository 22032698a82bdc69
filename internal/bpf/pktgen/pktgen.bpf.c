//go:build ignore
/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* The programs of a run: those that send, those that receive, those that make and answer
 * TCP connections, and one between them. */
#include "../include/kernel.h"
#include "pktgen.h"

/* The flows of a run, struct flow4 or struct flow6. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(key_size, 4);
	__uint(value_size, sizeof(struct flow6));
	__uint(max_entries, 1);
	__uint(map_flags, BPF_F_MMAPABLE);
} flows SEC(".maps");

const volatile bool ipv6;
const volatile __u8 protocol;
const volatile __u32 run_id; /* network byte order */
const volatile __u32 out_ifindex;

#include "generator.h"
#include "receiver.h"

const volatile __u32 mac_words[3]; /* destination and source, as on the wire */

#include "segment.h"
#include "client.h"
#include "responder.h"

/* What follows is a router that does nothing but forward: the limit of the path. */

SEC("xdp")
int forward(struct xdp_md *ctx)
{
	__u32 *mac = (void *)(long)ctx->data;

	if ((void *)(mac + 3) > (void *)(long)ctx->data_end)
		return XDP_ABORTED;
	mac[0] = mac_words[0];
	mac[1] = mac_words[1];
	mac[2] = mac_words[2];
	return bpf_redirect(out_ifindex, 0);
}

char LICENSE[] SEC("license") = "GPL";
