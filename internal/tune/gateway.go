package tune

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// Kinds of gateway plans (package gateway).
const (
	// Gateway puts a plan in force by one engine in a network namespace. Target is
	// GatewayTarget's, the value GatewayNone or the plan's digest, by which
	// internal/gateway/engine knows it.
	Gateway Kind = "gateway"
	// GatewayFile is the file that `natkit gateway run` reads at boot. Target is
	// GatewayFileTarget, the value the digest of its text; empty where there is none.
	GatewayFile Kind = "gateway-file"
)

const (
	// GatewayNone is the value where the engine has nothing in force.
	GatewayNone = "none"
	// GatewayForeign is read where something is in the engine's place that natkit did not
	// make.
	GatewayForeign = "foreign"
	// gatewayChanged follows the digest of rules that were changed since.
	gatewayChanged = " changed"
	// GatewayFileTarget is the only Target of kind GatewayFile.
	GatewayFileTarget = "configuration"

	// EngineNetfilter is the engine that journals of earlier versions name by its table.
	EngineNetfilter = "netfilter"
	formerNetfilter = "inet natkit"
)

// digestPattern: see gateway.Digest.
var digestPattern = regexp.MustCompile(`^[0-9a-f]{32,128}$`)

// IsDigest reports whether s is the digest of a plan or a text.
func IsDigest(s string) bool { return digestPattern.MatchString(s) }

// GatewayTarget names what an engine has in force in the network namespace of an inode.
func GatewayTarget(inode uint64, engine string) string {
	return fmt.Sprintf("netns %d %s", inode, engine)
}

// engineNames are the words that an engine may have.
var engineNames = regexp.MustCompile(`^[a-z][a-z0-9-]*$`)

// ParseGatewayTarget returns the inode of the namespace and the engine that a target names.
func ParseGatewayTarget(target string) (inode uint64, engine string, err error) {
	f := strings.SplitN(target, " ", 3)
	if len(f) != 3 || f[0] != "netns" {
		return 0, "", fmt.Errorf("gateway %q: expected netns INODE ENGINE", target)
	}
	inode, err = strconv.ParseUint(f[1], 10, 64)
	if err != nil || strconv.FormatUint(inode, 10) != f[1] {
		return 0, "", fmt.Errorf("gateway %q: %q is not the inode of a network namespace", target, f[1])
	}
	if engine = f[2]; engine == formerNetfilter {
		engine = EngineNetfilter
	}
	if !engineNames.MatchString(engine) {
		return 0, "", fmt.Errorf("gateway %q: %q is not an engine", target, f[2])
	}
	return inode, engine, nil
}

// GatewayChanged returns the value of a table that natkit made for a plan and that was
// changed since. It is restored to the plan as natkit wrote it.
func GatewayChanged(digest string) string { return digest + gatewayChanged }

// GatewayDigest is the digest in a value of kind Gateway; empty where it has none.
// changed is true where the table is no longer as natkit wrote it.
func GatewayDigest(value string) (digest string, changed bool) {
	digest, changed = strings.CutSuffix(value, gatewayChanged)
	if !IsDigest(digest) {
		return "", changed
	}
	return digest, changed
}

// validateGateway accepts the mark of changed rules too: in After where they were changed as they were written.
func (c Change) validateGateway() error {
	if _, _, err := ParseGatewayTarget(c.Target); err != nil {
		return err
	}
	before, _ := GatewayDigest(c.Before)
	if before == "" && c.Before != GatewayNone {
		return fmt.Errorf("gateway %s: value %q is neither %s nor the digest of a plan", c.Target, c.Before, GatewayNone)
	}
	if after, _ := GatewayDigest(c.After); after == "" && c.After != GatewayNone {
		return fmt.Errorf("gateway %s: value %q is neither %s nor the digest of a plan", c.Target, c.After, GatewayNone)
	}
	return nil
}

func (c Change) validateGatewayFile() error {
	if c.Target != GatewayFileTarget {
		return fmt.Errorf("gateway file %q: expected %s", c.Target, GatewayFileTarget)
	}
	for _, v := range []string{c.Before, c.After} {
		if v != "" && !IsDigest(v) {
			return fmt.Errorf("gateway file: value %q is not the digest of a text", v)
		}
	}
	return nil
}

// Follows reports whether the change begins with the value that another one wrote. A
// gateway changed by hand in between is restored as it was written.
func (c Change) Follows(value string) bool {
	if c.Kind == Gateway {
		digest, _ := GatewayDigest(c.Before)
		return c.Before == value || digest != "" && digest == value
	}
	return SameValue(c.Before, value)
}
