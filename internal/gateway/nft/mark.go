package nft

import (
	"strings"

	"github.com/google/nftables/userdata"

	"github.com/natkit/natkit/internal/natrules"
)

// Table is the name of natkit's own table, of family inet.
const Table = natrules.GatewayTable

// MarkChain is a chain of natkit's table that no hook and no rule leads to. Its rules
// say by their comments what the table is, in a form that every kernel keeps
// (tables have no comments of their own before 5.10).
const MarkChain = "natkit-mark"

// digestWords begin the comment (user data of a rule) that the writer leaves in
// MarkChain for a plan.
const digestWords = "digest "

func comment(text string) []byte { return userdata.AppendString(nil, userdata.TypeComment, text) }

// digestOf is the digest that a comment of MarkChain tells.
func digestOf(comment string) (string, bool) { return strings.CutPrefix(comment, digestWords) }
