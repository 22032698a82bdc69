/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* The parts of the kernel's interface that our programs use, so that compiling
 * them needs no headers of the machine at hand. Layouts and numbers are those of
 * include/uapi/linux/{bpf,if_ether,ip,ipv6,tcp,udp}.h, which do not change. */
#pragma once

typedef unsigned char __u8;
typedef unsigned short __u16;
typedef unsigned int __u32;
typedef unsigned long long __u64;
typedef signed int __s32;
typedef signed long long __s64;
typedef __u16 __be16;
typedef __u32 __be32;
typedef _Bool bool;
#define true 1
#define false 0

#define SEC(name) __attribute__((section(name), used))
#define __always_inline inline __attribute__((always_inline))
#define __noinline __attribute__((noinline))
#define likely(x) __builtin_expect(!!(x), 1)
#define unlikely(x) __builtin_expect(!!(x), 0)
/* Keeps the compiler from reordering or merging what is before and after. */
#define barrier_var(var) asm volatile("" : "+r"(var))

/* Map definitions by BTF, as the loaders read them. */
#define __uint(name, value) int(*name)[value]
#define __type(name, value) typeof(value) *name

#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
#define htons(x) __builtin_bswap16(x)
#define htonl(x) __builtin_bswap32(x)
#else
#define htons(x) (x)
#define htonl(x) (x)
#endif
#define ntohs(x) htons(x)
#define ntohl(x) htonl(x)

enum {
	BPF_MAP_TYPE_HASH = 1,
	BPF_MAP_TYPE_ARRAY = 2,
	BPF_MAP_TYPE_PERCPU_ARRAY = 6,
	BPF_MAP_TYPE_STACK_TRACE = 7,
	BPF_MAP_TYPE_LRU_HASH = 9,
	BPF_MAP_TYPE_LPM_TRIE = 11,
	BPF_MAP_TYPE_RINGBUF = 27,
};

enum {
	BPF_ANY,
	BPF_NOEXIST,
};

enum {
	BPF_F_NO_PREALLOC = 1 << 0,
	BPF_F_FAST_STACK_CMP = 1 << 9,
	BPF_F_MMAPABLE = 1 << 10,
};

/* Flags of bpf_ringbuf_submit, and what bpf_ringbuf_query is asked for. */
enum {
	BPF_RB_NO_WAKEUP = 1 << 0,
	BPF_RB_FORCE_WAKEUP = 1 << 1,
	BPF_RB_AVAIL_DATA = 0,
};

/* Flags of bpf_l4_csum_replace; the lower four bits are a size. */
enum {
	BPF_F_PSEUDO_HDR = 1 << 4,
	BPF_F_MARK_MANGLED_0 = 1 << 5,
};

/* What bpf_fib_lookup returns; negative where it cannot be asked. */
enum {
	BPF_FIB_LKUP_RET_SUCCESS,
	BPF_FIB_LKUP_RET_BLACKHOLE,
	BPF_FIB_LKUP_RET_UNREACHABLE,
	BPF_FIB_LKUP_RET_PROHIBIT,
	BPF_FIB_LKUP_RET_NOT_FWDED,
	BPF_FIB_LKUP_RET_FWD_DISABLED,
	BPF_FIB_LKUP_RET_UNSUPP_LWT,
	BPF_FIB_LKUP_RET_NO_NEIGH,
	BPF_FIB_LKUP_RET_FRAG_NEEDED,
};

/* struct bpf_redir_neigh is a next hop. */
struct bpf_redir_neigh {
	__u32 nh_family;
	__be32 nh[4]; /* IPv4: the first word */
};

struct bpf_fib_lookup {
	__u8 family;
	__u8 l4_protocol;
	__be16 sport, dport;
	__u16 tot_len; /* in: of the packet, 0 for no check; out: the MTU of the route, where it was asked for (5.12) */
	__u32 ifindex; /* in: ingress; out: egress */
	__be32 tos_or_flowinfo; /* IPv4: tos in the first byte */
	__be32 src[4];
	__be32 dst[4];
	__be16 h_vlan_proto, h_vlan_TCI; /* or the routing table, or mark */
	__u8 smac[6];
	__u8 dmac[6];
};

enum {
	XDP_ABORTED,
	XDP_DROP,
	XDP_PASS,
	XDP_TX,
	XDP_REDIRECT,
};

struct xdp_md {
	__u32 data;
	__u32 data_end;
	__u32 data_meta;
	__u32 ingress_ifindex;
	__u32 rx_queue_index;
	__u32 egress_ifindex;
};

/* struct __sk_buff is the context of programs at tc. */
struct __sk_buff {
	__u32 len;
	__u32 pkt_type;
	__u32 mark;
	__u32 queue_mapping;
	__u32 protocol;
	__u32 vlan_present;
	__u32 vlan_tci;
	__u32 vlan_proto;
	__u32 priority;
	__u32 ingress_ifindex;
	__u32 ifindex;
	__u32 tc_index;
	__u32 cb[5];
	__u32 hash;
	__u32 tc_classid;
	__u32 data;
	__u32 data_end;
	__u32 napi_id;
	__u32 family;
	__u32 remote_ip4;
	__u32 local_ip4;
	__u32 remote_ip6[4];
	__u32 local_ip6[4];
	__u32 remote_port;
	__u32 local_port;
	__u32 data_meta;
	__u64 flow_keys;
	__u64 tstamp;
	__u32 wire_len;
	__u32 gso_segs;
	__u64 sk;
	__u32 gso_size;
};

enum {
	TC_ACT_UNSPEC = -1, /* go on: to the next program, and to the stack */
	TC_ACT_OK = 0,
	TC_ACT_SHOT = 2,
};

struct bpf_spin_lock {
	__u32 val;
};

enum {
	ETH_P_IP = 0x0800,
	ETH_P_8021Q = 0x8100,
	ETH_P_8021AD = 0x88a8,
	ETH_P_IPV6 = 0x86dd,
};

enum {
	IPPROTO_TCP = 6,
	IPPROTO_UDP = 17,
};

struct ethhdr {
	__u8 h_dest[6];
	__u8 h_source[6];
	__be16 h_proto;
} __attribute__((packed));

struct vlan_hdr {
	__be16 tci;
	__be16 encapsulated_proto;
};

struct iphdr {
	__u8 version_ihl;
	__u8 tos;
	__be16 tot_len;
	__be16 id;
	__be16 frag_off;
	__u8 ttl;
	__u8 protocol;
	__u16 check;
	__be32 saddr;
	__be32 daddr;
};

struct ipv6hdr {
	__be32 version_class_flow;
	__be16 payload_len;
	__u8 nexthdr;
	__u8 hop_limit;
	__be32 saddr[4];
	__be32 daddr[4];
};

struct udphdr {
	__be16 source;
	__be16 dest;
	__be16 len;
	__u16 check;
};

struct tcphdr {
	__be16 source;
	__be16 dest;
	__be32 seq;
	__be32 ack_seq;
	__u8 doff_res; /* data offset in words, in the upper four bits */
	__u8 flags;    /* CWR ECE URG ACK PSH RST SYN FIN */
	__be16 window;
	__u16 check;
	__be16 urg_ptr;
};

/* Helpers by their number (enum bpf_func_id). */
static void *(*const bpf_map_lookup_elem)(const void *map, const void *key) = (void *)1;
static long (*const bpf_map_update_elem)(const void *map, const void *key, const void *value, __u64 flags) = (void *)2;
static long (*const bpf_map_delete_elem)(const void *map, const void *key) = (void *)3;
static __u64 (*const bpf_ktime_get_ns)(void) = (void *)5;
static long (*const bpf_skb_store_bytes)(struct __sk_buff *skb, __u32 offset, const void *from, __u32 len, __u64 flags) = (void *)9;
static long (*const bpf_l3_csum_replace)(struct __sk_buff *skb, __u32 offset, __u64 from, __u64 to, __u64 flags) = (void *)10;
static long (*const bpf_l4_csum_replace)(struct __sk_buff *skb, __u32 offset, __u64 from, __u64 to, __u64 flags) = (void *)11;
static __u32 (*const bpf_get_smp_processor_id)(void) = (void *)8;
static __u64 (*const bpf_get_current_pid_tgid)(void) = (void *)14;
static long (*const bpf_get_current_comm)(void *buf, __u32 size) = (void *)16;
static long (*const bpf_redirect)(__u32 ifindex, __u64 flags) = (void *)23;
static long (*const bpf_skb_load_bytes)(const void *skb, __u32 offset, void *to, __u32 len) = (void *)26;
static long (*const bpf_get_stackid)(void *ctx, const void *map, __u64 flags) = (void *)27;
static __s64 (*const bpf_csum_diff)(__be32 *from, __u32 from_size, __be32 *to, __u32 to_size, __u32 seed) = (void *)28;
static long (*const bpf_xdp_adjust_tail)(struct xdp_md *ctx, int delta) = (void *)65;
static long (*const bpf_get_stack)(void *ctx, void *buf, __u32 size, __u64 flags) = (void *)67;
static long (*const bpf_csum_update)(struct __sk_buff *skb, __u32 csum) = (void *)40;
static long (*const bpf_skb_change_head)(struct __sk_buff *skb, __u32 len, __u64 flags) = (void *)43;
static long (*const bpf_fib_lookup)(void *ctx, struct bpf_fib_lookup *params, int size, __u32 flags) = (void *)69;
static long (*const bpf_check_mtu)(void *ctx, __u32 ifindex, __u32 *mtu_len, __s32 len_diff, __u64 flags) = (void *)163;
static long (*const bpf_spin_lock)(struct bpf_spin_lock *lock) = (void *)93;
static long (*const bpf_spin_unlock)(struct bpf_spin_lock *lock) = (void *)94;
static long (*const bpf_probe_read_kernel)(void *to, __u32 size, const void *from) = (void *)113;
static void *(*const bpf_ringbuf_reserve)(const void *ring, __u64 size, __u64 flags) = (void *)131;
static void (*const bpf_ringbuf_submit)(void *data, __u64 flags) = (void *)132;
static __u64 (*const bpf_ringbuf_query)(const void *ring, __u64 flags) = (void *)134;
static __u64 (*const bpf_jiffies64)(void) = (void *)118;
static long (*const bpf_redirect_neigh)(__u32 ifindex, void *params, int size, __u64 flags) = (void *)152;
static __u64 (*const bpf_get_func_ip)(void *ctx) = (void *)173;
static long (*const bpf_get_func_arg)(void *ctx, __u32 n, __u64 *value) = (void *)183;
static long (*const bpf_get_func_ret)(void *ctx, __u64 *value) = (void *)184;
