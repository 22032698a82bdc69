package table

// How a column is encoded, by its tag: few different values as a dictionary (dict), ports and times, which have many, by
// the bits of their differences (delta), which all three engines read. A counter of bytes is left as it is.

// Head is what every row begins with.
type Head struct {
	Node   string `parquet:"node,dict" doc:"name of the host, or what --node says"`
	Kernel string `parquet:"kernel,optional,dict" doc:"release of the kernel that was observed"`
	Netns  string `parquet:"netns,optional,dict" doc:"name of the network namespace, else its inode"`
	Time   Time   `parquet:"time,delta,timestamp(microsecond)" doc:"when it was observed; a partition has those of one day (UTC)"`
}

// When is the time of the row.
func (h Head) When() Time { return h.Time }

// Where is the row's node.
func (h Head) Where() string { return h.Node }

// Entry is an entry of a connection table.
type Entry struct {
	Head
	Family       string `parquet:"family,dict" doc:"ipv4 or ipv6"`
	Protocol     string `parquet:"protocol,dict" doc:"tcp, udp, icmp, …; the number of one without a name"`
	State        string `parquet:"state,optional,dict" doc:"state of TCP, SCTP or DCCP, as conntrack(8) names it"`
	Zone         int32  `parquet:"zone,dict" doc:"conntrack zone of the original direction; 0 is the default one"`
	Mark         *int64 `parquet:"mark,optional,dict" doc:"connection mark; null on a kernel without marks"`
	Src          string `parquet:"src,dict" doc:"source of the first packet"`
	Sport        int32  `parquet:"sport,optional,delta" doc:"its port; of ICMP the identifier"`
	Dst          string `parquet:"dst,dict" doc:"destination of the first packet"`
	Dport        int32  `parquet:"dport,optional,dict" doc:"its port"`
	ReplySrc     string `parquet:"reply_src,dict" doc:"source of an answer where it comes in"`
	ReplySport   int32  `parquet:"reply_sport,optional,dict" doc:"its port"`
	ReplyDst     string `parquet:"reply_dst,dict" doc:"destination of an answer where it comes in"`
	ReplyDport   int32  `parquet:"reply_dport,optional,delta" doc:"its port; of ICMP the identifier"`
	SNAT         bool   `parquet:"snat" doc:"whether the source is translated"`
	DNAT         bool   `parquet:"dnat" doc:"whether the destination is translated"`
	NATAddress   string `parquet:"nat_address,optional,dict" doc:"address that the source becomes (reply_dst); null where it is not translated"`
	NATPort      int32  `parquet:"nat_port,optional,delta" doc:"port that the source becomes (reply_dport); null where it is not translated"`
	Server       string `parquet:"server,dict" doc:"where it really goes (reply_src)"`
	ServerPort   int32  `parquet:"server_port,optional,dict" doc:"its port (reply_sport)"`
	OrigPackets  *int64 `parquet:"orig_packets,optional,dict" unit:"packets" doc:"from the client; null without net.netfilter.nf_conntrack_acct"`
	OrigBytes    *int64 `parquet:"orig_bytes,optional" unit:"bytes" doc:"from the client, headers of IP included"`
	ReplyPackets *int64 `parquet:"reply_packets,optional,dict" unit:"packets" doc:"to the client"`
	ReplyBytes   *int64 `parquet:"reply_bytes,optional" unit:"bytes" doc:"to the client"`
	TimeoutS     *int64 `parquet:"timeout_s,optional,dict" unit:"s" doc:"until the entry expires if no packet comes; null of an offloaded one"`
	IdleS        *int64 `parquet:"idle_s,optional,dict" unit:"s" doc:"since the last packet: the timeout of its state less timeout_s; null where that timeout is not known"`
	Assured      bool   `parquet:"assured" doc:"whether it is spared when the table is full"`
	Replied      bool   `parquet:"replied" doc:"whether an answer was seen"`
	Started      Time   `parquet:"started,optional,delta,timestamp(microsecond)" doc:"when it was made; null without net.netfilter.nf_conntrack_timestamp"`
}

// NATLog is who had which address and ports of a NAT.
type NATLog struct {
	Head
	Event       string `parquet:"event,dict" doc:"start, end, or block: ports given by a rule"`
	Protocol    string `parquet:"protocol,optional,dict" doc:"tcp, udp, icmp, …; null of a block for all"`
	Src         string `parquet:"src,dict" doc:"who had it: the address before translation"`
	Sport       int32  `parquet:"sport,optional,delta" doc:"port before translation; null of a block"`
	NATAddress  string `parquet:"nat_address,dict" doc:"address after translation; src where the destination alone is translated"`
	NATPort     int32  `parquet:"nat_port,optional,delta" doc:"port after translation; the first one of a block"`
	NATPortLast int32  `parquet:"nat_port_last,optional,delta" doc:"the last port of a block; of one connection the same as nat_port"`
	Dst         string `parquet:"dst,optional,dict" doc:"destination, as the client names it; null of a block"`
	Dport       int32  `parquet:"dport,optional,dict" doc:"its port"`
	Server      string `parquet:"server,optional,dict" doc:"who answers, where the destination was translated; else null"`
	ServerPort  int32  `parquet:"server_port,optional,dict" doc:"its port"`
	Zone        int32  `parquet:"zone,optional,dict" doc:"conntrack zone of the direction of the first packet; null of the default one and of a block"`
	ReplyZone   int32  `parquet:"reply_zone,optional,dict" doc:"conntrack zone of the answers, in which nat_address and nat_port are; null of the default one and of a block"`
	Started     Time   `parquet:"started,optional,delta,timestamp(microsecond)" doc:"when it began; null where that was not seen, as of a start that was there before the log: time is then when it was there"`
	Ended       Time   `parquet:"ended,optional,delta,timestamp(microsecond)" doc:"when it ended; null of one that goes on"`
}

// Connection is a TCP connection in a capture.
type Connection struct {
	Head
	Protocol        string `parquet:"protocol,dict" doc:"tcp"`
	Client          string `parquet:"client,dict" doc:"who sent the SYN; where the capture has none, who has the higher port"`
	ClientPort      int32  `parquet:"client_port" doc:"its port"`
	Server          string `parquet:"server,dict" doc:"whom it was sent to"`
	ServerPort      int32  `parquet:"server_port" doc:"its port"`
	Started         Time   `parquet:"started,optional,timestamp(microsecond)" doc:"when the first SYN was captured; null of one that began before the capture"`
	Ended           Time   `parquet:"ended,timestamp(microsecond)" doc:"when its last packet was captured"`
	Outcome         string `parquet:"outcome,optional,dict" doc:"connected, refused, unanswered, not-accepted, rejected-paws, rejected-seq, challenged, rejected-or-challenged, or open-at-end; null of one that began before the capture"`
	Closed          string `parquet:"closed,dict" doc:"open, half-closed, server-first, client-first or reset"`
	HandshakeUS     *int64 `parquet:"handshake_us,optional" unit:"µs" doc:"from the first SYN to its answer, as captured; null without an answer"`
	SYNs            int32  `parquet:"syns" doc:"transmissions of the SYN"`
	Retransmissions int64  `parquet:"retransmissions" unit:"packets" doc:"segments with data or FIN that were captured again"`
	ClientPackets   int64  `parquet:"client_packets" unit:"packets" doc:"from the client"`
	ClientBytes     int64  `parquet:"client_bytes" unit:"bytes" doc:"payload from the client, also what came again"`
	ServerPackets   int64  `parquet:"server_packets" unit:"packets" doc:"from the server"`
	ServerBytes     int64  `parquet:"server_bytes" unit:"bytes" doc:"payload from the server, also what came again"`
}

// Incident is one thing that went wrong in a capture.
type Incident struct {
	Head
	Kind       string `parquet:"kind,dict" doc:"as 'natkit pcap' names it: syn-rejected-paws, syn-unanswered, …"`
	Fault      bool   `parquet:"fault" doc:"whether this kind costs connections"`
	Text       string `parquet:"text,dict" doc:"what the kind means"`
	Client     string `parquet:"client,dict" doc:"who sent the SYN, or the packet in question"`
	ClientPort int32  `parquet:"client_port" doc:"its port"`
	Server     string `parquet:"server,dict" doc:"the other end"`
	ServerPort int32  `parquet:"server_port" doc:"its port"`
	Frame      int64  `parquet:"frame" doc:"number of its first packet in the capture"`
	Outcome    string `parquet:"outcome,optional,dict" doc:"how the attempt to connect ended: connected, failed, moved, open-at-end"`
	Verdict    string `parquet:"verdict,optional,dict" doc:"what became of its last SYN: rejected-paws, unanswered, …"`
	SYNs       int32  `parquet:"syns" doc:"SYNs of the attempt, 16 at most"`
	ConnectUS  *int64 `parquet:"connect_us,optional" unit:"µs" doc:"from the first SYN to the answer that was accepted; null where there was none"`
}

// Flow is a service whose connections were followed for a time.
type Flow struct {
	Head
	Protocol           string  `parquet:"protocol,dict" doc:"tcp, udp, icmp, …"`
	Service            string  `parquet:"service,dict" doc:"destination as clients name it"`
	ServicePort        int32   `parquet:"service_port,optional" doc:"its port"`
	Target             string  `parquet:"target,optional,dict" doc:"what the destination became; null where it is the same"`
	TargetPort         int32   `parquet:"target_port,optional" doc:"its port"`
	NATAddress         string  `parquet:"nat_address,optional,dict" doc:"what the source became; null where it is the same"`
	In                 string  `parquet:"in_interface,optional,dict" doc:"interface that the packets came in by; null of those of this host"`
	Out                string  `parquet:"out_interface,optional,dict" doc:"interface that they left by; null where none left"`
	IntervalS          float64 `parquet:"interval_s" unit:"s" doc:"how long connections were followed"`
	Sample             int32   `parquet:"sample" doc:"one in so many connections of TCP was followed"`
	Clients            *int64  `parquet:"clients,optional" doc:"different addresses of clients"`
	Connections        int64   `parquet:"connections" unit:"connections" doc:"all of them: answered, waiting, one_way and failed"`
	Answered           int64   `parquet:"answered" unit:"connections" doc:"the answer left for the client"`
	Waiting            int64   `parquet:"waiting" unit:"connections" doc:"too young to say"`
	OneWay             int64   `parquet:"one_way" unit:"connections" doc:"datagrams to which no answer is meant to come"`
	Failed             int64   `parquet:"failed" unit:"connections" doc:"sum of the following"`
	LostHere           int64   `parquet:"lost_here" unit:"connections" doc:"came in and did not leave"`
	RefusedHere        int64   `parquet:"refused_here" unit:"connections" doc:"this host answered by a RST"`
	UnreachableHere    int64   `parquet:"unreachable_here" unit:"connections" doc:"this host answered by an ICMP error"`
	NoAnswer           int64   `parquet:"no_answer" unit:"connections" doc:"left, and nothing came back"`
	Refused            int64   `parquet:"refused" unit:"connections" doc:"a RST came back"`
	Unreachable        int64   `parquet:"unreachable" unit:"connections" doc:"an ICMP error came back"`
	AnsweredByAnother  int64   `parquet:"answered_by_another" unit:"connections" doc:"the answer came from another address or port"`
	AnswerLostHere     int64   `parquet:"answer_lost_here" unit:"connections" doc:"the answer came and did not leave"`
	AnswerUntranslated int64   `parquet:"answer_untranslated" unit:"connections" doc:"the answer left by another address than was asked"`
	ClientAsksAgain    int64   `parquet:"client_asks_again" unit:"connections" doc:"the answer left, and the client asked again"`
	DataLostHere       int64   `parquet:"data_lost_here" unit:"connections" doc:"opened; then data came in again and again and did not leave"`
	DataUnanswered     int64   `parquet:"data_unanswered" unit:"connections" doc:"opened; then data left again and again and was not acknowledged"`
	DataMissing        int64   `parquet:"data_missing" unit:"connections" doc:"opened; then the client gave up waiting for data"`
	ResetHere          int64   `parquet:"reset_here" unit:"connections" doc:"opened; then this host sent a RST of its own"`
	Reset              int64   `parquet:"reset" unit:"connections" doc:"opened; then a RST came in place of an answer"`
	DatagramsLostHere  int64   `parquet:"datagrams_lost_here" unit:"connections" doc:"flows of datagrams of which a part did not leave"`
	Repeated           int64   `parquet:"repeated" unit:"packets" doc:"first packets that came again"`
	HereUS             *int64  `parquet:"here_us,optional" unit:"µs" doc:"of the answered ones on average: from in to out"`
	ServerUS           *int64  `parquet:"server_us,optional" unit:"µs" doc:"of the answered ones on average: from out until the answer came in"`
	BackUS             *int64  `parquet:"back_us,optional" unit:"µs" doc:"of the answered ones on average: from there until the answer left"`
}

// Finding is what doctor found.
type Finding struct {
	Head
	ID        string  `parquet:"id,dict" doc:"rule, as on the pages of the failure modes"`
	Severity  string  `parquet:"severity,dict" doc:"notice, warning or critical"`
	Certainty string  `parquet:"certainty,dict" doc:"certain, likely or possible"`
	Title     string  `parquet:"title" doc:"one line"`
	Subject   string  `parquet:"subject,optional,dict" doc:"address, or address:port, of the connections that it is about, separated by spaces; null where it is about the whole host"`
	Place     string  `parquet:"place,optional,dict" doc:"where connections are lost, where that is known"`
	Cause     string  `parquet:"cause,optional" doc:"why"`
	Remedy    string  `parquet:"remedy,optional,dict" doc:"title of the first way out"`
	FirstSeen Time    `parquet:"first_seen,timestamp(microsecond)" doc:"since when it has lasted, as far as is known"`
	IntervalS float64 `parquet:"interval_s" unit:"s" doc:"between the two readings that were compared"`
}

// Sample is the counters of a connection table at a time.
type Sample struct {
	Head
	BootID         string   `parquet:"boot_id,optional,dict" doc:"new at each boot: counters begin at 0 again"`
	Entries        *int64   `parquet:"entries_count,optional" unit:"entries" doc:"net.netfilter.nf_conntrack_count"`
	EntriesMax     *int64   `parquet:"entries_max,optional" unit:"entries" doc:"net.netfilter.nf_conntrack_max"`
	Buckets        *int64   `parquet:"buckets,optional" doc:"net.netfilter.nf_conntrack_buckets"`
	Found          *int64   `parquet:"found,optional" doc:"conntrack's counter of this name, of all CPUs; the same holds for the following ten"`
	Invalid        *int64   `parquet:"invalid,optional" unit:"packets" doc:"packets that could not be tracked"`
	Insert         *int64   `parquet:"insert,optional" unit:"entries" doc:"0 on current kernels"`
	InsertFailed   *int64   `parquet:"insert_failed,optional" unit:"packets" doc:"entries that could not be inserted; the packet is dropped"`
	Drop           *int64   `parquet:"drop,optional" unit:"packets" doc:"packets dropped as an entry could not be made: above all a full table"`
	EarlyDrop      *int64   `parquet:"early_drop,optional" unit:"entries" doc:"entries that were removed to make room"`
	Error          *int64   `parquet:"error,optional" unit:"packets" doc:"ICMP errors that were not right"`
	SearchRestart  *int64   `parquet:"search_restart,optional" doc:"look-ups that began again, as the table was resized or an entry moved"`
	ClashResolve   *int64   `parquet:"clash_resolve,optional" doc:"two packets that made the same entry at once, resolved"`
	ChainTooLong   *int64   `parquet:"chaintoolong,optional" unit:"packets" doc:"entries that were not inserted, as too many have the same hash"`
	Ignore         *int64   `parquet:"ignore,optional" unit:"packets" doc:"packets that were not to be tracked; until Linux 5.10"`
	NewPerS        *float64 `parquet:"new_per_s,optional" unit:"1/s" doc:"rate of new entries since the sample before"`
	SYNs           *int64   `parquet:"syns,optional" unit:"packets" doc:"SYNs that were watched since the sample before; null where none were"`
	SYNsUnanswered *int64   `parquet:"syns_unanswered,optional" unit:"packets" doc:"of them those without an answer"`
	DroppedPackets *int64   `parquet:"dropped_packets,optional" unit:"packets" doc:"what the kernel dropped since the sample before, of all kinds; null where that was not recorded"`
	MemTotal       *int64   `parquet:"memory_total_bytes,optional" unit:"bytes" doc:"memory of the host"`
	MemAvailable   *int64   `parquet:"memory_available_bytes,optional" unit:"bytes" doc:"of it available"`
	IntervalS      *float64 `parquet:"interval_s,optional" unit:"s" doc:"since the sample before; null of the first one"`
}

// Service is what became of the connections of a service that NAT translates.
type Service struct {
	Head
	Kind        string  `parquet:"kind,dict" doc:"dnat (to a service), snat (all whose source alone is translated); parts of these: destination, network; untranslated. Sum over dnat and snat alone"`
	Protocol    string  `parquet:"protocol,dict" doc:"tcp, udp, icmp, …"`
	Address     string  `parquet:"address,optional,dict" doc:"destination as clients name it; null of kinds without one"`
	Port        int32   `parquet:"port,optional" doc:"its port"`
	Target      string  `parquet:"target,optional,dict" doc:"where it leads; null where it is not translated"`
	TargetPort  int32   `parquet:"target_port,optional" doc:"its port"`
	NATAddress  string  `parquet:"nat_address,optional,dict" doc:"what the source becomes; of untranslated and network the network of the clients"`
	Attempts    int64   `parquet:"attempts" unit:"connections" doc:"answered and unanswered"`
	Answered    int64   `parquet:"answered" unit:"connections" doc:"began or ended lately and were answered"`
	Unanswered  int64   `parquet:"unanswered" unit:"connections" doc:"had no answer, or their client did not go on"`
	Refused     *int64  `parquet:"refused,optional" unit:"connections" doc:"answered by a RST, which leaves no entry in the table: known where packets were followed, of the connections that were"`
	Reset       int64   `parquet:"reset" unit:"connections" doc:"of the answered ones those that ended by a RST"`
	Stalled     int64   `parquet:"stalled" unit:"connections" doc:"were answered, and then one side no longer acknowledged what the other one sent"`
	Open        int64   `parquet:"open" unit:"connections" doc:"older ones that are there"`
	New         *int64  `parquet:"new,optional" unit:"connections" doc:"began since the sample before; null where a part of the table was read"`
	HandshakeUS *int64  `parquet:"handshake_us,optional" unit:"µs" doc:"mean time from the first packet in to its answer out, where packets were followed"`
	Complete    bool    `parquet:"complete" doc:"whether the whole table was read: numbers are of the entries that were"`
	IntervalS   float64 `parquet:"interval_s" unit:"s" doc:"how far back connections count"`
}
