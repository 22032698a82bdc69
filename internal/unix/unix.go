// Package unix has the constants of Linux' interface that data and pure packages use, under the names that
// golang.org/x/sys/unix has for Linux. That package has for other systems other names, and other values under the same
// name: AF_INET6 is 30 on macOS. What a Linux machine wrote is read by these on every system. TestConstants compares them.
package unix

// Families of addresses (include/linux/socket.h).
const (
	AF_INET   = 2
	AF_INET6  = 10
	AF_UNSPEC = 0
)

// Protocols of IP (include/uapi/linux/in.h, in6.h).
const (
	IPPROTO_AH       = 51
	IPPROTO_DCCP     = 33
	IPPROTO_DSTOPTS  = 60
	IPPROTO_ESP      = 50
	IPPROTO_FRAGMENT = 44
	IPPROTO_GRE      = 47
	IPPROTO_HOPOPTS  = 0
	IPPROTO_ICMP     = 1
	IPPROTO_ICMPV6   = 58
	IPPROTO_IGMP     = 2
	IPPROTO_IPIP     = 4
	IPPROTO_IPV6     = 41
	IPPROTO_NONE     = 59
	IPPROTO_ROUTING  = 43
	IPPROTO_SCTP     = 132
	IPPROTO_TCP      = 6
	IPPROTO_UDP      = 17
	IPPROTO_UDPLITE  = 136
)

// Ethernet and interfaces (include/uapi/linux/if_ether.h, if.h).
const (
	ETH_P_IP        = 0x800
	ETH_P_IPV6      = 0x86dd
	IFF_BROADCAST   = 0x2
	IFF_LOOPBACK    = 0x8
	IFF_NOARP       = 0x80
	IFF_POINTOPOINT = 0x10
	IFF_RUNNING     = 0x40
	IFF_UP          = 0x1
	IFNAMSIZ        = 16
)

// Netlink (include/uapi/linux/netlink.h, sock_diag.h; the sizes are those of its structs).
const (
	NETLINK_GENERIC     = 16
	NETLINK_INET_DIAG   = 4
	NETLINK_NETFILTER   = 12
	NETLINK_ROUTE       = 0
	NLA_ALIGNTO         = 4
	NLA_F_NESTED        = 0x8000
	NLMSGERR_ATTR_MSG   = 1
	NLMSGERR_ATTR_OFFS  = 2
	NLMSG_ALIGNTO       = 4
	NLMSG_ERROR         = 2
	NLM_F_ACK_TLVS      = 0x200
	NLM_F_CAPPED        = 0x100
	NLM_F_DUMP          = 0x300
	NLM_F_MULTI         = 0x2
	SOCK_DIAG_BY_FAMILY = 20
	SizeofNlAttr        = 4
	SizeofNlMsghdr      = 16
)

// Links, routes, rules and neighbours (include/uapi/linux/rtnetlink.h, if_link.h, fib_rules.h, neighbour.h).
const (
	FIB_RULE_INVERT      = 2
	FRA_DPORT_RANGE      = 24
	FRA_DST              = 1
	FRA_FWMARK           = 10
	FRA_FWMASK           = 16
	FRA_IIFNAME          = 3
	FRA_IP_PROTO         = 22
	FRA_OIFNAME          = 17
	FRA_PRIORITY         = 6
	FRA_SPORT_RANGE      = 23
	FRA_SRC              = 2
	FRA_TABLE            = 15
	FR_ACT_BLACKHOLE     = 6
	FR_ACT_PROHIBIT      = 8
	FR_ACT_TO_TBL        = 1
	FR_ACT_UNREACHABLE   = 7
	IFLA_BRPORT_STATE    = 1
	IFLA_IFNAME          = 3
	IFLA_INFO_KIND       = 1
	IFLA_INFO_SLAVE_DATA = 5
	IFLA_INFO_SLAVE_KIND = 4
	IFLA_LINKINFO        = 18
	IFLA_MASTER          = 10
	NUD_DELAY            = 0x8
	NUD_FAILED           = 0x20
	NUD_INCOMPLETE       = 0x1
	NUD_NOARP            = 0x40
	NUD_PERMANENT        = 0x80
	NUD_PROBE            = 0x10
	NUD_REACHABLE        = 0x2
	NUD_STALE            = 0x4
	RTA_DPORT            = 29
	RTA_DST              = 1
	RTA_GATEWAY          = 5
	RTA_IIF              = 3
	RTA_IP_PROTO         = 27
	RTA_MARK             = 16
	RTA_MULTIPATH        = 9
	RTA_OIF              = 4
	RTA_SPORT            = 28
	RTA_SRC              = 2
	RTA_TABLE            = 15
	RTA_VIA              = 18
	RTM_GETLINK          = 18
	RTM_GETROUTE         = 26
	RTM_GETRULE          = 34
	RTN_BLACKHOLE        = 6
	RTN_LOCAL            = 2
	RTN_PROHIBIT         = 8
	RTN_UNREACHABLE      = 7
	RT_TABLE_DEFAULT     = 253
	RT_TABLE_LOCAL       = 255
	RT_TABLE_MAIN        = 254
	SizeofIfInfomsg      = 16
	SizeofRtMsg          = 12
	SizeofRtNexthop      = 8
)

// Netfilter (include/uapi/linux/netfilter.h, netfilter/nfnetlink.h, netfilter/nf_nat.h).
const (
	NFNETLINK_V0                    = 0
	NFNLGRP_CONNTRACK_EXP_DESTROY   = 6
	NFNL_SUBSYS_CTNETLINK           = 1
	NFPROTO_BRIDGE                  = 7
	NFPROTO_INET                    = 1
	NFPROTO_IPV4                    = 2
	NFPROTO_IPV6                    = 10
	NFPROTO_NETDEV                  = 5
	NF_INET_FORWARD                 = 2
	NF_INET_NUMHOOKS                = 5
	NF_INET_POST_ROUTING            = 4
	NF_NAT_RANGE_MAP_IPS            = 0x1
	NF_NAT_RANGE_NETMAP             = 0x40
	NF_NAT_RANGE_PERSISTENT         = 0x8
	NF_NAT_RANGE_PROTO_OFFSET       = 0x20
	NF_NAT_RANGE_PROTO_RANDOM       = 0x4
	NF_NAT_RANGE_PROTO_RANDOM_FULLY = 0x10
	NF_NAT_RANGE_PROTO_SPECIFIED    = 0x2
)

// Attributes of nf_tables (include/uapi/linux/netfilter/nf_tables.h, nf_tables_compat.h).
const (
	NFTA_BITWISE_DREG        = 2
	NFTA_BITWISE_MASK        = 4
	NFTA_BITWISE_SREG        = 1
	NFTA_BITWISE_XOR         = 5
	NFTA_BYTEORDER_DREG      = 2
	NFTA_BYTEORDER_SREG      = 1
	NFTA_CHAIN_COUNTERS      = 8
	NFTA_CHAIN_HOOK          = 4
	NFTA_CHAIN_NAME          = 3
	NFTA_CHAIN_POLICY        = 5
	NFTA_CHAIN_TABLE         = 1
	NFTA_CHAIN_TYPE          = 7
	NFTA_CMP_DATA            = 3
	NFTA_CMP_OP              = 2
	NFTA_CMP_SREG            = 1
	NFTA_COUNTER_PACKETS     = 2
	NFTA_CT_DIRECTION        = 3
	NFTA_CT_DREG             = 1
	NFTA_CT_KEY              = 2
	NFTA_CT_SREG             = 4
	NFTA_DATA_VALUE          = 1
	NFTA_DATA_VERDICT        = 2
	NFTA_DYNSET_EXPR         = 7
	NFTA_EXTHDR_LEN          = 4
	NFTA_EXTHDR_OFFSET       = 3
	NFTA_EXTHDR_OP           = 6
	NFTA_EXTHDR_SREG         = 7
	NFTA_EXTHDR_TYPE         = 2
	NFTA_FIB_DREG            = 1
	NFTA_FIB_FLAGS           = 3
	NFTA_FIB_F_DADDR         = 2
	NFTA_FIB_RESULT          = 2
	NFTA_HASH_DREG           = 2
	NFTA_HASH_LEN            = 3
	NFTA_HASH_MODULUS        = 4
	NFTA_HASH_OFFSET         = 6
	NFTA_HASH_SREG           = 1
	NFTA_HASH_TYPE           = 7
	NFTA_HOOK_DEV            = 3
	NFTA_HOOK_HOOKNUM        = 1
	NFTA_HOOK_PRIORITY       = 2
	NFTA_IMMEDIATE_DATA      = 2
	NFTA_IMMEDIATE_DREG      = 1
	NFTA_LIST_ELEM           = 1
	NFTA_LOG_FLAGS           = 6
	NFTA_LOG_GROUP           = 1
	NFTA_LOG_LEVEL           = 5
	NFTA_LOG_PREFIX          = 2
	NFTA_LOOKUP_DREG         = 3
	NFTA_LOOKUP_FLAGS        = 5
	NFTA_LOOKUP_SET          = 1
	NFTA_LOOKUP_SREG         = 2
	NFTA_MASQ_FLAGS          = 1
	NFTA_MASQ_REG_PROTO_MAX  = 3
	NFTA_MASQ_REG_PROTO_MIN  = 2
	NFTA_MATCH_INFO          = 3
	NFTA_MATCH_NAME          = 1
	NFTA_MATCH_REV           = 2
	NFTA_META_DREG           = 1
	NFTA_META_KEY            = 2
	NFTA_META_SREG           = 3
	NFTA_NAT_FAMILY          = 2
	NFTA_NAT_FLAGS           = 7
	NFTA_NAT_REG_ADDR_MAX    = 4
	NFTA_NAT_REG_ADDR_MIN    = 3
	NFTA_NAT_REG_PROTO_MAX   = 6
	NFTA_NAT_REG_PROTO_MIN   = 5
	NFTA_NAT_TYPE            = 1
	NFTA_NG_DREG             = 1
	NFTA_NG_MODULUS          = 2
	NFTA_NG_OFFSET           = 4
	NFTA_PAYLOAD_BASE        = 2
	NFTA_PAYLOAD_DREG        = 1
	NFTA_PAYLOAD_LEN         = 4
	NFTA_PAYLOAD_OFFSET      = 3
	NFTA_QUOTA_CONSUMED      = 4
	NFTA_REDIR_FLAGS         = 3
	NFTA_REDIR_REG_PROTO_MAX = 2
	NFTA_REDIR_REG_PROTO_MIN = 1
	NFTA_RT_DREG             = 1
	NFTA_RT_KEY              = 2
	NFTA_RULE_CHAIN          = 2
	NFTA_RULE_COMPAT         = 5
	NFTA_RULE_COMPAT_FLAGS   = 2
	NFTA_RULE_COMPAT_PROTO   = 1
	NFTA_RULE_EXPRESSIONS    = 4
	NFTA_RULE_HANDLE         = 3
	NFTA_RULE_TABLE          = 1
	NFTA_RULE_USERDATA       = 7
	NFTA_SET_ELEM_DATA       = 2
	NFTA_SET_ELEM_FLAGS      = 3
	NFTA_SET_ELEM_KEY        = 1
	NFTA_SET_ELEM_USERDATA   = 6
	NFTA_SET_FLAGS           = 3
	NFTA_SET_NAME            = 2
	NFTA_TARGET_INFO         = 3
	NFTA_TARGET_NAME         = 1
	NFTA_TARGET_REV          = 2
	NFTA_VERDICT_CHAIN       = 2
	NFTA_VERDICT_CODE        = 1
)

// Values of nf_tables (include/uapi/linux/netfilter/nf_tables.h, nf_tables_compat.h).
const (
	NFT_CMP_EQ                   = 0
	NFT_CMP_GTE                  = 5
	NFT_CMP_LTE                  = 3
	NFT_CMP_NEQ                  = 1
	NFT_CT_DIRECTION             = 1
	NFT_CT_DST                   = 9
	NFT_CT_DST_IP                = 20
	NFT_CT_DST_IP6               = 22
	NFT_CT_LABELS                = 13
	NFT_CT_MARK                  = 3
	NFT_CT_PROTO_DST             = 12
	NFT_CT_STATE                 = 0
	NFT_CT_STATUS                = 2
	NFT_CT_ZONE                  = 17
	NFT_EXTHDR_OP_TCPOPT         = 1
	NFT_FIB_RESULT_ADDRTYPE      = 3
	NFT_GOTO                     = -4
	NFT_HASH_SYM                 = 1
	NFT_JUMP                     = -3
	NFT_LOOKUP_F_INV             = 1
	NFT_META_CGROUP              = 23
	NFT_META_IIF                 = 4
	NFT_META_IIFGROUP            = 21
	NFT_META_IIFNAME             = 6
	NFT_META_IIFTYPE             = 8
	NFT_META_L4PROTO             = 16
	NFT_META_LEN                 = 0
	NFT_META_MARK                = 3
	NFT_META_NFPROTO             = 15
	NFT_META_NFTRACE             = 12
	NFT_META_OIF                 = 5
	NFT_META_OIFGROUP            = 22
	NFT_META_OIFNAME             = 7
	NFT_META_OIFTYPE             = 9
	NFT_META_PKTTYPE             = 19
	NFT_META_PROTOCOL            = 1
	NFT_META_RTCLASSID           = 13
	NFT_META_SKGID               = 11
	NFT_META_SKUID               = 10
	NFT_MSG_NEWRULE              = 6
	NFT_NAT_DNAT                 = 1
	NFT_NAT_SNAT                 = 0
	NFT_PAYLOAD_LL_HEADER        = 0
	NFT_PAYLOAD_NETWORK_HEADER   = 1
	NFT_PAYLOAD_TRANSPORT_HEADER = 2
	NFT_RETURN                   = -5
	NFT_RT_TCPMSS                = 3
	NFT_RULE_COMPAT_F_INV        = 2
	NFT_SET_ELEM_INTERVAL_END    = 0x1
	NFT_SET_EVAL                 = 0x20
	NFT_SET_INTERVAL             = 0x4
	NFT_SET_TIMEOUT              = 0x10
)
