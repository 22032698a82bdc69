package natlog

import (
	"cmp"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"
)

// world is connections that share an address and port outside towards a few peers, one at a time towards each.
type world struct {
	r   *rand.Rand
	all []lasting
}

// lasting is a connection that is there from a second on, until another one.
type lasting struct {
	host, peer, from, until int
}

const worldEnds = 3000

func newWorld(r *rand.Rand) *world {
	w := &world{r: r}
	for peer := range 2 {
		for at := -300; at < worldEnds; {
			at += 1 + r.IntN(200)
			c := lasting{1 + r.IntN(3), peer, at, at + 1 + r.IntN(1+r.IntN(400))}
			w.all = append(w.all, c)
			at = c.until
		}
	}
	return w
}

// hosts are those that have a connection at a time.
func (w *world) hosts(at float64) (hosts []int) {
	for _, c := range w.all {
		if float64(c.from) < at && at < float64(c.until) && !slices.Contains(hosts, c.host) {
			hosts = append(hosts, c.host)
		}
	}
	slices.Sort(hosts)
	return hosts
}

// second is a time in the log; queries are between two.
func second(at float64) time.Time {
	return time.Unix(100_000, 0).Add(time.Duration(at * float64(time.Second)))
}

func (c lasting) record(kind Kind, at int) Record {
	return Record{Kind: kind, Time: second(float64(at)), Node: "gw", Protocol: 17, Src: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(c.host)}), 4000),
		NAT: netip.MustParseAddrPort("203.0.113.9:4000"), Dst: netip.AddrPortFrom(netip.AddrFrom4([4]byte{198, 51, 100, byte(c.peer)}), 53)}
}

// faults are what may happen to a log, each in so many of a hundred.
type faults struct{ lost, removed, killed, stamped, rotated, readings, without int }

// log is what natkit writes of the world, as files: runs with pauses, files that are begun amid a run, and a list for each of both.
func (w *world) log(f faults) (files [][]Record) {
	chance := func(n int) bool { return w.r.IntN(100) < n }
	var file []Record
	part, begun, last := 0, 0, 0
	unsaid := uint64(0) // records that were lost since the last one, which the log says before the next
	put := func(r Record) {
		if unsaid > 0 && r.Kind != Continue && r.Kind != Begin {
			file = append(file, Record{Kind: Lost, Time: r.Time, Node: "gw", Count: unsaid})
			unsaid = 0
		}
		file, last = append(file, r), int(r.Time.Sub(second(0)).Seconds())
	}
	end := func() { files, file = append(files, file), nil }
	stamped := chance(f.stamped)
	at := w.r.IntN(200)
	for at < worldEnds {
		until := at + 50 + w.r.IntN(1500)
		begin, every := at, 0
		if chance(f.readings) {
			every = 5 + w.r.IntN(20)
		}
		without := Without("")
		if chance(f.without) {
			without = []Without{WithoutPresent, WithoutStarts}[w.r.IntN(2)]
		}
		about := func(kind Kind, at int) Record {
			r := Record{Kind: kind, Time: second(float64(at)), Node: "gw", Within: time.Duration(every) * time.Second}
			if kind == Begin || kind == Continue {
				r.Without = without
			}
			return r
		}
		list, listed := at+w.r.IntN(5), without != "" // when the table is read
		put(about(Begin, at))
		part, begun = 1, begin
		unsaid = 0
		session := func(r Record) {
			if chance(f.lost) {
				unsaid++
				return
			}
			put(r)
		}
		step := max(every, 1)
		read := at
		for ; at <= until && at < worldEnds; at += step {
			for _, c := range w.all { // what differs since the last reading, or happens now
				if c.until > read && c.until <= at && c.from <= read && c.until > begin {
					r := c.record(End, at)
					r.Within, r.Ended = time.Duration(every)*time.Second, r.Time
					if c.from > begin && every > 0 {
						r.Started = second(float64(begin + (c.from-begin+every-1)/every*every))
						r.StartedWithin = r.Within
					} else if c.from > begin || stamped {
						r.Started = second(float64(c.from))
					}
					session(r)
				}
			}
			for _, c := range w.all {
				if c.from > read && c.from <= at && c.until > at && c.from > begin && without != WithoutStarts {
					r := c.record(Start, at)
					if r.Started, r.Within = r.Time, time.Duration(every)*time.Second; every == 0 {
						r.Time, r.Started = second(float64(c.from)), second(float64(c.from))
					}
					session(r)
				}
			}
			read = at
			if !listed && at >= list {
				for _, c := range w.all {
					if c.from <= at && c.until > at && (c.from < list || every > 0) {
						r := c.record(Start, at)
						r.Before = true
						if stamped {
							r.Started = second(float64(c.from))
						}
						put(r)
					}
				}
				r := about(Listed, at)
				r.Within = 0
				put(r)
				listed = true
			}
			if at-last >= 60 {
				put(about(Alive, at))
			}
			if listed && at+step <= until && chance(f.rotated) {
				end()
				part++
				r := about(Continue, last)
				r.Started, r.Part = second(float64(begun)), part
				put(r)
				list, listed = at+1+w.r.IntN(5), without != ""
			}
		}
		if !chance(f.killed) {
			r := about(Stop, min(at-step, until))
			r.Within = 0
			put(r)
		}
		end()
		at += 1 + w.r.IntN(200)
	}
	return slices.DeleteFunc(files, func([]Record) bool { return chance(f.removed) })
}

// ask returns the hosts that were found, those of them that are certain, and whether these are all for sure.
func ask(files [][]Record, at float64) (found, certain []int, sure bool) {
	h := NewHistory(Query{Address: netip.MustParseAddr("203.0.113.9"), Port: 4000, Protocol: 17}, false, second(at))
	for _, file := range files {
		for i := range file {
			h.Add(&file[i])
		}
	}
	for _, one := range h.Held() {
		host := int(one.Src.Addr().As4()[3])
		if found = append(found, host); one.Doubt == "" {
			certain = append(certain, host)
		}
	}
	covers, _, _ := h.Covers()
	unique := func(all []int) []int { slices.Sort(all); return slices.Compact(all) }
	found, certain = unique(found), unique(certain)
	return found, certain, covers == "" && h.Omits() == "" && len(found) == len(certain)
}

// TestAnswersAreTrue asks logs of worlds that are known: what is for sure is so, whatever is missing, and what is there is always found
// in a time of which the log has all.
func TestAnswersAreTrue(t *testing.T) {
	for name, f := range map[string]faults{
		"whole":            {},
		"stamped":          {stamped: 50, killed: 50},
		"rotated":          {rotated: 2, stamped: 50},
		"files removed":    {rotated: 2, removed: 30, stamped: 50, killed: 30},
		"records lost":     {rotated: 1, lost: 10, stamped: 50, killed: 30},
		"all of it":        {rotated: 2, lost: 3, removed: 20, stamped: 50, killed: 50},
		"without":          {rotated: 1, without: 30, killed: 30, stamped: 50, removed: 10},
		"readings":         {rotated: 1, readings: 100, killed: 30},
		"readings, faults": {rotated: 1, readings: 50, killed: 30, removed: 20, lost: 3, without: 20},
	} {
		t.Run(name, func(t *testing.T) {
			sure, asked := 0, 0
			for seed := range uint64(100) {
				r := rand.New(rand.NewPCG(seed, 7))
				w := newWorld(r)
				files := w.log(f)
				for range 40 {
					at := float64(r.IntN(worldEnds)) + 0.5
					want := w.hosts(at)
					found, certain, all := ask(files, at)
					asked++
					if all {
						if sure++; !slices.Equal(found, want) {
							t.Errorf("seed %d at %g: %v for sure, it was %v", seed, at, found, want)
						}
					}
					for _, host := range certain {
						if !slices.Contains(want, host) {
							t.Errorf("seed %d at %g: %v certain, it was %v", seed, at, certain, want)
						}
					}
					if t.Failed() {
						for _, file := range files {
							for _, one := range file {
								t.Log(string(one.AppendJSON(nil)))
							}
							t.Log("--")
						}
						t.FailNow()
					}
				}
			}
			t.Logf("%d of %d answers are for sure", sure, asked)
			if least := cmp.Or(map[string]int{"readings": -1, "readings, faults": asked / 20}[name], asked/4); sure < least {
				t.Errorf("%d of %d answers are for sure", sure, asked)
			}
		})
	}
}
