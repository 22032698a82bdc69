//go:build ignore
/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Hands on the packets of a network namespace that filters keep: as they come in, before
 * rules and other programs can drop them, and as they leave, behind all that can. A packet
 * socket is at the same places, but has the kernel clone each packet that is sent.
 *
 * What comes in is seen by tcx programs on the interfaces or, where the kernel has none,
 * at a tracepoint, which costs three times as much; what leaves, at a tracepoint: egress
 * programs come before the queueing discipline and before the classifiers of clsact. */
#include "../include/skb.h"

enum {
	KEEP_BYTES = 128, /* of a packet, from its IP header on */
	/* Filters look at so many bytes first: those of both headers, without options. */
	FIRST_BYTES = 40,
	FIRST_BYTES6 = 56,
};

enum {
	PACKET_OUTGOING = 4, /* linux/if_packet.h */
};

enum {
	TCX_NEXT = -1,
};

struct sk_buff___more {
	unsigned int data_len;
	unsigned char *data;
	__u16 mac_len;
	__u8 pkt_type : 3;
} CO_RE;

struct packet {
	__u64 time_ns; /* CLOCK_MONOTONIC */
	__u32 ifindex;
	__u32 generation;
	__u16 length; /* of bytes */
	__u8 type; /* PACKET_… */
	__u8 feeds; /* a bit for each filter that keeps it */
	__u32 padding;
	unsigned char bytes[KEEP_BYTES];
};

/* A copy of what filters look at. */
union bytes {
	unsigned char bytes[KEEP_BYTES];
	__u64 words[KEEP_BYTES / 8];
};

/* A filter wants to see bytes beyond the end. */
#define BEYOND 0x100

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 22);
	__type(value, struct packet); /* for its BTF */
} packets SEC(".maps");

/* What all programs share. */
enum state {
	LOST,	    /* packets without room in the ring */
	UNREADABLE, /* packets that have bytes where the program cannot read them */
	NR_STATE,
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, NR_STATE);
	__type(key, __u32);
	__type(value, __u64);
} state SEC(".maps");

/* The bits that have to be 0 of a number that filters choose connections by, two for each
 * filter. The filters alone read them. */
struct masks {
	__u32 of[16];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct masks);
} masks SEC(".maps");

const volatile __u32 generation; /* of programs, which change with their filters */
const volatile __u32 only_netns;
/* The verifier allows to follow pointers to bytes (Linux 6.17). */
const volatile bool direct;
/* The kernel reads all parts of a packet for a tracepoint's program (Linux 6.11). */
const volatile bool all_parts;

static long (*const bpf_dynptr_read)(void *to, __u32 len, const void *from, __u32 offset, __u64 flags) = (void *)201;

#define KFUNC __attribute__((section(".ksyms")))
void *bpf_cast_to_kern_ctx(void *ctx) KFUNC;

struct bpf_dynptr {
	__u64 opaque[2];
} __attribute__((aligned(8)));
int bpf_dynptr_from_skb(struct sk_buff *skb, __u64 flags, struct bpf_dynptr *to) KFUNC __attribute__((weak));

static __always_inline void count(__u32 what)
{
	__u64 *n = bpf_map_lookup_elem(&state, &what);

	if (n)
		__sync_fetch_and_add(n, 1);
}

/* filters is given a packet from its IP header on, PACKET_…, the EtherType in the machine's order, and
 * the interface. Its body is exchanged before loading: the compiler must not know what it returns. */
static __noinline __u32 filters(const void *at, __u32 length, __u32 type, __u32 protocol, __u32 ifindex)
{
	__u32 feeds = 1;

	asm volatile("" : "+r"(feeds) : "r"(at), "r"(length), "r"(type), "r"(protocol), "r"(ifindex) : "memory");
	return feeds;
}

static __always_inline void hand_on(const union bytes *b, __u32 length, __u32 type, __u32 ifindex, __u32 feeds)
{
	struct packet *p = bpf_ringbuf_reserve(&packets, sizeof(*p), 0);

	if (!p) {
		count(LOST);
		return;
	}
	p->time_ns = bpf_ktime_get_ns();
	p->generation = generation;
	p->ifindex = ifindex;
	p->length = length;
	p->type = type;
	p->feeds = feeds;
	__builtin_memcpy(p->bytes, b->bytes, KEEP_BYTES);
	bpf_ringbuf_submit(p, BPF_RB_NO_WAKEUP);
}

static __always_inline bool is_ip(__u32 protocol)
{
	return protocol == ETH_P_IP || protocol == ETH_P_IPV6;
}

static __always_inline bool is_tcp(const union bytes *b, __u32 protocol)
{
	return (protocol == ETH_P_IP ? b->bytes[9] : b->bytes[6]) == IPPROTO_TCP;
}

/* read_parts reads a packet that is not in one piece, from an offset on, and returns how much. */
static __always_inline __u32 read_parts(struct sk_buff *skb, __u32 offset, union bytes *b)
{
	struct bpf_dynptr all;
	__u32 length = skb->len - offset;

	if (length > KEEP_BYTES)
		length = KEEP_BYTES;
	barrier_var(length);
	if (length < 1 || length > KEEP_BYTES) /* for the verifier */
		return 0;
	if (bpf_dynptr_from_skb(skb, 0, &all) || bpf_dynptr_read(b->bytes, length, &all, offset, 0))
		return 0;
	return length;
}

/* keep reads all that filters may want of a packet that one of them may keep. */
static __always_inline void keep(struct sk_buff *skb, struct net_device *dev, unsigned char *at, long readable, __u32 type,
				 __u32 protocol, __u32 feeds)
{
	struct sk_buff___more *more = (void *)skb;
	union bytes b;
	__u32 length = readable < KEEP_BYTES ? readable : KEEP_BYTES;

	if (bpf_probe_read_kernel(b.bytes, KEEP_BYTES, at))
		return;
	if (readable < KEEP_BYTES && more->data_len) {
		if (all_parts)
			length = read_parts(skb, (__u32)((long)at - (long)more->data), &b);
		else if (!is_tcp(&b, protocol) || feeds & BEYOND) /* of TCP the headers are enough */
			length = 0;
		if (!length) {
			count(UNREADABLE);
			return;
		}
	}
	if (feeds & BEYOND)
		feeds = filters(b.bytes, length, type, protocol, dev->ifindex) & ~BEYOND;
	if (feeds)
		hand_on(&b, length, type, dev->ifindex, feeds);
}

/* trace is for tracepoints, whose packets are not checked by the verifier. What is behind the
 * end of a packet can be read, and is not used. Not to copy a packet saves most. */
static __always_inline void trace(struct sk_buff *skb, struct net_device *dev, unsigned char *at, __be16 l3, __u32 type)
{
	__u32 feeds, length, protocol = ntohs(l3);
	long readable;

	if (!is_ip(protocol) || dev->nd_net.net->ns.inum != only_netns)
		return;
	readable = skb->head + skb->tail - at;
	barrier_var(readable);
	if (direct) {
		length = readable < KEEP_BYTES ? readable : KEEP_BYTES;
		feeds = filters(at, length, type, protocol, dev->ifindex);
	} else {
		union bytes b;

		length = readable < FIRST_BYTES6 ? readable : FIRST_BYTES6;
		if (bpf_probe_read_kernel(b.bytes, FIRST_BYTES6, at))
			return;
		feeds = filters(b.bytes, length, type, protocol, dev->ifindex);
	}
	if (unlikely(feeds))
		keep(skb, dev, at, readable, type, protocol, feeds);
}

SEC("tp_btf/net_dev_start_xmit")
int left(__u64 *ctx)
{
	struct sk_buff *skb = (void *)ctx[0];

	trace(skb, (void *)ctx[1], skb->head + skb->network_header, skb->protocol, PACKET_OUTGOING);
	return 0;
}

SEC("tp_btf/netif_receive_skb")
int traced(__u64 *ctx)
{
	struct sk_buff *skb = (void *)ctx[0];
	struct sk_buff___more *more = (void *)skb;
	unsigned char *at = more->data;
	__be16 protocol = skb->protocol;

	if (unlikely(protocol == htons(ETH_P_8021Q) || protocol == htons(ETH_P_8021AD))) {
		struct vlan_hdr tag; /* which the kernel removes afterwards */

		if (bpf_probe_read_kernel(&tag, sizeof(tag), at))
			return 0;
		at += sizeof(tag);
		protocol = tag.encapsulated_proto;
	}
	trace(skb, skb->dev, at, protocol, more->pkt_type);
	return 0;
}

/* load reads the packet from its IP header on, and returns the length of what filters may
 * want; 0 where it cannot be read. */
static __always_inline __u32 load(struct __sk_buff *skb, __u32 offset, union bytes *b)
{
	__u32 length = skb->len - offset;

	if (length > KEEP_BYTES)
		length = KEEP_BYTES;
	barrier_var(length);
	if (length < 1 || length > KEEP_BYTES) /* for the verifier */
		return 0;
	__builtin_memset(b->bytes, 0, KEEP_BYTES);
	return bpf_skb_load_bytes(skb, offset, b->bytes, length) ? 0 : length;
}

SEC("tcx/ingress")
int came(struct __sk_buff *skb)
{
	struct sk_buff___more *kernel = bpf_cast_to_kern_ctx(skb);
	__u32 feeds = BEYOND, offset = kernel->mac_len & 0x3f, protocol = ntohs(skb->protocol), length;
	__u64 *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	union bytes b;

	if (!is_ip(protocol))
		return TCX_NEXT;
	data = (void *)data + offset;
	if (likely(data + FIRST_BYTES / 8 <= end)) {
		for (int i = 0; i < FIRST_BYTES / 8; i++)
			b.words[i] = data[i];
		length = FIRST_BYTES;
		if (protocol == ETH_P_IPV6 && data + FIRST_BYTES6 / 8 <= end) {
			for (int i = FIRST_BYTES / 8; i < FIRST_BYTES6 / 8; i++)
				b.words[i] = data[i];
			length = FIRST_BYTES6;
		}
		feeds = filters(b.bytes, length, skb->pkt_type, protocol, skb->ifindex);
		if (likely(!feeds))
			return TCX_NEXT;
	}
	length = load(skb, offset, &b);
	if (!length)
		return TCX_NEXT;
	if (feeds & BEYOND)
		feeds = filters(b.bytes, length, skb->pkt_type, protocol, skb->ifindex) & ~BEYOND;
	if (feeds)
		hand_on(&b, length, skb->pkt_type, skb->ifindex, feeds);
	return TCX_NEXT;
}

char LICENSE[] SEC("license") = "GPL";
