package natrules

// Numbers of include/uapi/linux/netfilter/nf_tables.h that golang.org/x/sys/unix
// has no names for, or that read better beside what uses them.
const (
	nftRuleTable, nftRuleChain, nftRuleHandle, nftRuleExprs = 1, 2, 3, 4
	nftRuleCompat, nftRuleUserdata                          = 5, 7

	nftCompatProto        = 1
	nftCompatFlags        = 2
	nftCompatInverted     = 2 // NFT_RULE_COMPAT_F_INV
	nftListElem           = 1
	nftExprName           = 1
	nftExprData           = 2
	nftDataValue          = 1
	nftDataVerdict        = 2
	nftVerdictCode        = 1
	nftVerdictChain       = 2
	nftImmediateDreg      = 1
	nftImmediateData      = 2
	nftTableName          = 1
	nftTableFlags         = 2
	nftTableDormant       = 1 // NFT_TABLE_F_DORMANT
	nftTableOwner         = 2 // NFT_TABLE_F_OWNER
	nftChainTable         = 1
	nftChainName          = 3
	nftChainHook          = 4
	nftChainPolicy        = 5
	nftChainType          = 7
	nftHookNum            = 1
	nftHookPriority       = 2
	nftSetElemListTable   = 1
	nftSetElemListSet     = 2
	nftSetElemListElems   = 3
	nftSetElemKey         = 1
	nftSetElemFlags       = 3
	nftSetElemData        = 2
	nftLookupSet          = 1
	nftLookupSreg         = 2
	nftLookupFlags        = 5 // NFT_LOOKUP_F_INV
	nftLookupDreg         = 3
	nftMetaDreg           = 1
	nftMetaKey            = 2
	nftPayloadDreg        = 1
	nftPayloadBase        = 2
	nftPayloadOffset      = 3
	nftPayloadLen         = 4
	nftCmpSreg            = 1
	nftCmpOp              = 2
	nftCmpData            = 3
	nftBitwiseSreg        = 1
	nftBitwiseDreg        = 2
	nftBitwiseMask        = 4
	nftBitwiseXor         = 5
	nftBitwiseOp          = 6
	nftXtName             = 1
	nftXtRevision         = 2
	nftXtInfo             = 3
	nftGenID              = 1
	nfnlBatchGenID        = 1
	payloadNetwork        = 1 // NFT_PAYLOAD_NETWORK_HEADER
	payloadTransport      = 2
	verdictDrop           = 0
	verdictAccept         = 1
	verdictJump           = -3
	verdictGoto           = -4
	verdictReturn         = -5
	metaIif, metaOif      = 4, 5
	metaIifname           = 6
	metaOifname           = 7
	metaNfproto           = 15
	metaL4proto           = 16
	familyInet, familyIP4 = 1, 2 // NFPROTO_INET, NFPROTO_IPV4
	familyIP6             = 10
)

// NF_NAT_RANGE_* of include/uapi/linux/netfilter/nf_nat.h.
const (
	rangeMapIPs      = 1 << 0
	rangePorts       = 1 << 1
	rangeRandom      = 1 << 2
	rangePersistent  = 1 << 3
	rangeFullyRandom = 1 << 4
	rangeOffset      = 1 << 5
	rangeNetmap      = 1 << 6
)

var familyNames = map[uint8]string{familyInet: "inet", familyIP4: "ip", familyIP6: "ip6"}

// hookNames are nft's, by NF_INET_*.
var hookNames = [...]string{"prerouting", "input", "forward", "output", "postrouting"}
