package ports

import "github.com/natkit/natkit/internal/snapshot"

// From here on it is of interest what another rule would change.
const (
	pressedFails = 1e-4
	pressedShare = 0.8
)

// alternatives computes what other rules would change.
func (r *row) alternatives(out *snapshot.Ports, sets *many) []snapshot.PortAlternative {
	var all []snapshot.PortAlternative
	if !r.share.draws {
		// Every new connection then draws, and after some time all ports were drawn.
		all = append(all, snapshot.PortAlternative{What: snapshot.PortsFullyRandom,
			FailsNow: r.FailsIfTaken, FailsLater: r.FailsScattered})
	}
	if whole := DefaultRange(r.key.proto, classOther); r.share.class == classOther && r.share.Size() < whole.Size() {
		all = append(all, r.longer(out, sets, whole))
	}
	// Connections are spread over the addresses by a hash of source and destination
	// (find_best_ips_proto), and a new address is empty.
	half := ScatteredChance(int(r.Used)/2, r.share.Size(), out.Probing)
	return append(all, snapshot.PortAlternative{What: snapshot.PortsAnotherAddress,
		FailsNow: r.Fails / 2, FailsLater: r.TakenShare * half})
}

// longer is the whole range, in which most clients' own ports lie: those that are
// taken are as many as by chance.
func (r *row) longer(out *snapshot.Ports, sets *many, whole Range) snapshot.PortAlternative {
	used := sets.used.Count(whole)
	takenThen := 1.0
	if !r.share.draws {
		takenThen = float64(used) / float64(whole.Size())
	}
	evictable := sets.evictable
	if !out.Evicts {
		evictable = nil
	}
	return snapshot.PortAlternative{What: snapshot.PortsLongerRange,
		FailsNow:   takenThen * FailChance(&sets.used, evictable, whole, out.Probing),
		FailsLater: takenThen * ScatteredChance(used, whole.Size(), out.Probing)}
}
