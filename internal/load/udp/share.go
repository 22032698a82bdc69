package udp

// Share is one worker's part of a run: flow f is its where f modulo Workers is
// Worker. Datagram k of the run is of flow k modulo Flows.
type Share struct{ Flows, Workers, Worker int }

// Len is the number of the worker's flows.
func (s Share) Len() int { return (s.Flows - s.Worker + s.Workers - 1) / s.Workers }

// Flow is the number, among all, of the worker's i-th flow.
func (s Share) Flow(i int) int { return i*s.Workers + s.Worker }

// UpTo is how many of the run's first k datagrams are this worker's.
func (s Share) UpTo(k int64) int64 {
	rounds, rest := k/int64(s.Flows), int(k%int64(s.Flows))
	return rounds*int64(s.Len()) + int64(max(rest-s.Worker+s.Workers-1, 0)/s.Workers)
}

// When is the number among all of the worker's j-th datagram, which decides when
// it is due.
func (s Share) When(j int64) int64 {
	n := int64(s.Len())
	return j/n*int64(s.Flows) + int64(s.Flow(int(j%n)))
}

// Of is how many of n datagrams in all flow f sends.
func (s Share) Of(n int64, f int) int64 {
	of := n / int64(s.Flows)
	if int64(f) < n%int64(s.Flows) {
		of++
	}
	return of
}
