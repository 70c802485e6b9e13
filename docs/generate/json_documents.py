"""Keys of the JSON documents that commands print with ``--json``: the reference page, and what tests hold them to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

# Per document one line a key: path, type, meaning. A ``?`` behind the path: the key may be missing. ``a.b`` is key b of
# the object a, ``a[].b`` of each object in the list a, ``a{}.b`` of each value of the mapping a. Keys that nothing says
# more of are whole values, documented where the page says.
SETTING = "the setting of the labels: machine, device, backend, threads, batch size"
_CAMPAIGN = """
kind            text            solo, colocated or points
backend         text            what executes the subjects
device          text            where
threads         integer         compute threads of one subject
batch           list            batch sizes, examples
runs            integer         samples per subject at most
precision       number          wanted half width of the median's interval, as a share of it
max_seconds_per_item number     seconds of sampling per subject at most
rounds          integer         times that each subject is measured afresh
cache           text            warm or cold
machine         text            fingerprint id of the machine
device_name?    text            of a device other than the CPU: its model
placement?      text            of co-located subjects: shared or split cores
colocation?     text            of co-located subjects on a device: processes that take turns, mps, or streams
solo_runs?      integer         of co-located subjects: solo samples before and after
"""
_SCORES = """
predictors{}.dev_mae_s number   mean absolute error on the dev set, seconds
predictors{}.by_kind object     the same scores by kind of network
predictors{}.n  integer         networks in the test set
predictors{}.mae_s number       mean absolute error, seconds
predictors{}.label_mean_s number mean measured latency, seconds
predictors{}.label_std_s number standard deviation of measured latencies, seconds
predictors{}.mae_over_mean number mae_s over label_mean_s
predictors{}.mape number        mean of the error over the measured latency
predictors{}.within_5_percent number share of predictions that near
predictors{}.within_10_percent number share of predictions that near
predictors{}.spearman number?   rank correlation
predictors{}.interval_coverage number? share of labels inside their interval
predictors{}.interval_given number share of networks that have an interval
predictors{}.interval_width number? median of its upper over its lower end
predictors{}.floor object       what a predictor that knew every true latency would score
predictors{}.degradation_mean_s? number mean latency that co-location adds, seconds
"""
_SUPERNET = """
artifact        text            folder written
subnets         integer         subnets that the network has
weight_bytes    integer         bytes of the shared weights
statistics_bytes integer        bytes of all points' batch statistics
points[].point  text            operating point
points[].parameters integer     weights that it uses
points[].flops  integer         FLOPs per example
points[].validation_accuracy number on the validation split
points[].test_accuracy number   on the test split
"""
DOCUMENTS: Mapping[str, str] = {
    "doctor": """
ok              flag            nothing that slotool needs is missing
machine_id      text            fingerprint of the machine
machine         object          facts of the machine; memory in bytes
devices         list            cpu, and each CUDA device
threads         object          threads of each numerical library, if nobody sets them
advice          list            sentences on what makes latencies noisy
missing         list            packages that slotool needs and does not find
extras          object          whether each optional extra is installed
plugins[].group text            what it adds: policies, predictors, datasets …
plugins[].name  text            by which it is asked for
plugins[].package text          the installed package
plugins[].version text          of that package
plugins[].place text            module:attribute
plugins[].problem text?         why it cannot be used
""",
    "demo": """
folder          text            the run folder
seconds         number          seconds of the whole walkthrough
steps_s         object          seconds by step
cores_busy_with_others object   cores that other work kept busy, by step
timing          object          stable or disturbed, by step
figures         object          what the closing table shows
report          text            the report's HTML file
next            list            commands to try next
""",
    "capture": """
out             text?           graph file written
source?         text            one network: what was read
graph_id?       text            one network: id, equal for equal networks
operators?      integer         one network: number of operators
weights?        integer         one network: number of weights
flops?          integer         one network: FLOPs per example
unknown?        list            one network: operators kept by name alone
unknown_share?  number          one network: their share of the operators
unknown_flops_share? number?    one network: their share of the FLOPs
unknown_bytes_share? number?    one network: their share of the bytes that operators read and write, weights apart
moved_bytes?         integer?   one network: these bytes of one example, in its own element type
counted_flops?  integer?        one network: FLOPs by the framework's own counter
flops_mismatch? number?         one network: relative difference of the two counts
examples_interact? flag         one network: an example's answer depends on the rest of its batch
uncosted?       list            one network: operators without any count of FLOPs
element_type?   text            one network: type of its weights
compiled?       flag            one network: it holds compiled parts
graph?          object          one network: the graph, as in a .jsonl file
graphs?         list            several networks: the facts of each
failed?         object          several networks: why each of those left out could not be captured
""",
    "generate": """
out             text            graph file written
family          text            mlp, cnn or architectures
seed            integer         of the draw
count           integer         networks wanted
depth?          list            mlp and cnn: fewest and most hidden layers
exponents?      list            mlp and cnn: least and greatest width, as exponents of 2
input_shape?    list            mlp and cnn: of one example, channels first
architectures?  list            architectures: the kinds drawn from
batch_size      integer         examples in one call, for the memory limit
max_memory_bytes integer        networks that take more are skipped
max_flops?      integer         so are those of more FLOPs per example
blocks?         list            what a layer may be
downsampling?   list            how a layer may halve the image
resolutions?    list            sizes of square images, pixels
written         integer         networks written
search_space_size integer       networks that could be drawn
skipped         integer         networks drawn that are over a limit
weights_min     integer         fewest weights
weights_max     integer         most weights
flops_min       integer         fewest FLOPs per example
flops_max       integer         most FLOPs per example
seconds         number          seconds of drawing and writing
""",
    "generate-arrivals": """
out             text            arrival table written
kind            text            the arrival process
trace           text?           recorded trace that was replayed
seed            integer         of the draw
mean_rate_per_s number          requests per second of the process
duration_s      number          seconds that the arrivals span
arrivals        integer         requests drawn
cv2             number?         squared coefficient of variation of the gaps
busiest_second  integer         requests in the fullest second
""",
    "profile-solo": """
output          text            latency table written
measured        integer         subjects measured now
resumed         integer         subjects measured by an earlier run
left            integer         subjects that the budget left out
seconds         number          seconds of measuring
cores_busy_with_others number   mean cores that other processes kept busy
throttled_periods integer       periods in which the CPU quota stopped the measurements
throttled_s     number          seconds for which it did
rows_per_second number          subjects measured per second
others          integer         rows of other subjects, which an earlier command wrote; no figure is of them
skipped         integer         rows without samples: too big
out_of_memory   integer         rows without samples: memory did not suffice
failed          integer         rows without samples: failed
timeout         integer         rows without samples: out of time
ok_rows         integer         rows with samples
unstable        integer         rows whose samples or rounds differ by more than the precision
interrupted     integer         rows with samples that other processes interrupted
discarded       integer         samples left out as interrupted
latency_s       list            least, median and greatest median latency, seconds
energy_j        list            least, median and greatest joules of a call; empty where the machine counts none
energy_unknown  text?           why it counts none
points          list            operating points: medians with their interval, seconds, and joules of a call
networks        list            the fastest networks: name, median with its interval, seconds, and joules of a call
degradation     list            co-located rows: latency, solo latency and their ratio
reasons         list            why rows have no samples
device_remarks  list            what was seen of the device, or could not be read
"""
    + _CAMPAIGN,
    "profile-solo-plan": """
output          text            latency table that would be written
to_measure      integer         subjects to measure
to_skip         integer         subjects over the memory limit
finished        integer         subjects measured by an earlier run
memory_limit_bytes integer      limit of one subject
affinity        list            cores of each member
predicted_seconds number        seconds that it may take, roughly
budget_s        number?         seconds allowed
for?            text            with --for: predictor to adapt
proposed[].graph_id? text       network to measure, the one that tells most first
proposed[].name? text           its name
proposed[].kind? text           its kind
proposed[].predicted_s? number  its latency as predicted now, seconds
"""
    + _CAMPAIGN,
    "train-predictor": """
artifact        text            folder written
model           text            what --model asked for
chosen          text            predictor that was kept
setting         object          {SETTING}
rows            object          networks, or co-locations, in train, dev and test
graphs_without_label? integer   graphs that the latency table does not have
labels_without_graph? integer   measured subjects that are none of the graphs
networks?       integer         co-located: networks with a measured solo latency
rows_without_graph? integer     co-located: rows with a member that is none of the graphs
"""
    + _SCORES,
    "train-predictor-of-settings": """
artifact        text?           folder written
chosen          text            predictor that was kept: settings
networks        integer         networks learnt from
held_out        text            what was held out in turn: kinds of networks, or networks
settings[].setting object       {SETTING}
settings[].n    integer         labels
settings[].mape number          mean of the error over the latency, networks held out
settings[].least_squares_mape number the same of least squares
settings[].interval_coverage number share of labels inside their interval
""",
    "calibrate": """
backend         text            backend that ran the networks
threads         integer         compute threads
times           text            file of measured operators
operators       integer         operators known in it
seconds         number          what all of it took
measured_now    integer         networks that this command measured; the others are of earlier ones
mape            number          mean relative error of sums of operators timed in the network itself
elsewhere_mape  number?         the same of operators timed in another network; null: fewer than 10 networks share any
disturbed       integer         networks that other processes disturbed
networks[].graph_id text        network measured
networks[].name text            its name, or empty
networks[].kind text            its kind
networks[].latency_s number     median latency, seconds
networks[].sum_s number         sum of its operators, seconds
networks[].operators integer    operators that take time
networks[].disturbed flag       whether other processes disturbed it
networks[].log_error number     log of measured over predicted
""",
    "adapt-predictor": """
artifact        text            folder written
base            object          name and setting of the predictor adapted
taken_to_backend text?          backend that the base was taken to before any label, where it is another
setting         object          {SETTING}
sources[].source text           what the prediction rests on: a setting of the base, a roofline, three-term
sources[].share number          its share
adapted_to      list            ids of the networks learnt from
chosen          text            adapted: the predictor written
set_aside       list            labels that cannot be right, by graph_id: how many times what the others make likely
scored          integer         labels that only scored
interval_coverage number?       share of those inside their interval
predictors{}.held_out_mape number mean relative error on labels held out in turn
predictors{}.others_mape number? mean relative error on labels that only scored
""",
    "evaluate-predictor": """
predictor       text            name of the predictor
trained_for     object          setting that it was trained for
setting         object          {SETTING}
networks        integer         networks scored
outside         integer         networks unlike those learnt from
scores          object          scores of all networks, and by kind; keys as of train-predictor
furthest_off[].network text     networks of largest error
furthest_off[].measured_s number measured latency, seconds
furthest_off[].predicted_s number predicted latency, seconds
furthest_off[].relative_error number error over the measured latency
furthest_off[].outside text?    in what it is unlike those learnt from
predictions     text?           table written
""",
    "predict": """
predictor       text            name of the predictor
artifact        text            its folder
artifact_why    text?           why this one was chosen
advice          list            what would answer better, with commands
setting         object          setting that it predicts for
this_machine    object          same, or similar (facts are missing), and differences
nominal_coverage number         share of latencies that an interval is made to hold
slo_s           number?         latency asked about, seconds
co_runners      list            names of the networks that run at the same time
failed          object          why networks could not be captured, by name
predictions[].graph_id text     id of the network
predictions[].name text         its name
predictions[].kind text         its kind
predictions[].operators integer number of operators
predictions[].weights integer   number of weights
predictions[].flops integer     FLOPs per example
predictions[].weight_bytes integer bytes of all weights
predictions[].peak_activation_bytes integer most bytes that inputs and outputs take at one time, without work space
predictions[].form text         type of its weights, and what else is unlike the measured ones
predictions[].latency_s number  predicted latency of one call, seconds
predictions[].low_s number?     lower end of the interval, seconds
predictions[].high_s number?    upper end of the interval, seconds
predictions[].no_interval text? why there is none
predictions[].outside text?     in what it is unlike the networks learnt from
predictions[].estimated_share number? share of the latency in operators that were estimated, not measured
predictions[].domain object?    how far it is from them
predictions[].solo_s? number    solo latency, seconds
predictions[].solo_measured? flag whether that was measured
predictions[].degradation_ratio? number predicted over solo latency
predictions[].probability_within_slo? number? probability that the latency is at most slo_s
predictions[].explanation? object with --explain, seconds by type of operator and by operator
latency_table   text?           table written
""",
    "predict-sweep": """
predictor       text            name of the predictor
artifact        text            its folder
artifact_why    text?           why this one was chosen
advice          list            what would answer better, with commands
setting         object          setting that it predicts for
this_machine    object          same, or similar (facts are missing), and differences
nominal_coverage number         share of latencies that an interval is made to hold
slo_s           number?         latency asked about, seconds
fact            text            batch, threads, size or length
values          list            values asked about
failed          object          why networks could not be captured at any value, by name
largest_within_slo[].name text  name of the network
largest_within_slo[].value integer? largest value whose predicted latency is at most slo_s
largest_within_slo[].likely_value integer? largest value that keeps slo_s with a probability of 90 %
largest_within_slo[].probability_known flag whether any value has a probability
points[].name   text            name of the network
points[].graph_id text?         id of its graph
points[].value  integer         of the fact
points[].batch_size integer     examples in a call
points[].latency_s number?      predicted latency of one call, seconds
points[].low_s  number?         lower end of the interval, seconds
points[].high_s number?         upper end of the interval, seconds
points[].throughput number?     examples per second, one call after the other
points[].weight_bytes integer?  bytes of all weights
points[].peak_activation_bytes integer? most bytes that inputs and outputs take at one time, without work space
points[].probability_within_slo number? probability that the latency is at most slo_s
points[].learnt flag            whether labels were of this value; else it is scaled, or not predicted
points[].no_interval text?      why there is none
points[].outside text?          in what it is unlike the networks learnt from
points[].not_predicted text?    why there is no latency
latency_table   text?           table written
""",
    "train": """
artifact        text            folder written
data            text            data set
epochs          integer         passes over the training split
versions[].version text         version of the family
versions[].parameters integer   number of weights
versions[].flops integer        FLOPs per example
versions[].validation_accuracy number on the validation split
versions[].test_accuracy number on the test split
""",
    "train-xmc": """
artifact        text            folder written
data            text            data set
features        integer         sparse features
labels          integer         labels
examples        object          examples of train, validation and test
unlabelled      integer         examples without any label, left out
epochs          integer         passes over the training split
parameters      integer         number of weights
scores          object          precision at 1, 3 and 5 on the validation and test splits
""",
    "train-supernet": """
data            text            data set
epochs          integer         passes over the training split
network         text            resnet or transformer; or the factory or graph file of an own network
taken_weights   integer?        numbers that were taken over from an own network
fresh_layer     text?           its layer that started anew, for another number of classes
points[].test_accuracy_before number? test accuracy with the weights as they came
"""
    + _SUPERNET,
    "choose-points": """
latency         text?           latency table that latencies were estimated from
predictor       text?           predictor that they were estimated by
expected_latency_s object       seconds by operating point
timing          text?           of that table: stable or disturbed; null where it does not say, and of a predictor
"""
    + _SUPERNET,
    "build-tables": """
artifact        text            folder written
data            text            data set
examples        integer         examples of the test split
ranker          text            how nodes are ranked
tables          integer         hash tables
buckets         integer         buckets of each
measure         text            what confidence is measured by
mean_k_by_measure object        mean share of nodes by each measure that was tried
weight_dtype    text            float32 or int8
bucket_entropy_bits object      entropy of the bucket of an input, bits, by layer
table_bytes     integer         bytes of the tables
table_share     number          the same over the bytes of the weights
torch_us        number?         latency of one query by PyTorch, µs
promise         object          loss promised with which confidence, and by which point
points          list            per operating point: nodes, accuracy, latency in µs, speed-up
accuracy_targets list           k chosen per input, by accuracy target
ideal_mean_k    number          mean share of nodes if each input's need were known
payoff.k        list            shares of nodes
payoff.latency_us list          latency of one query at each, µs, by tables of few examples
payoff.full_us  number          with all nodes, µs
payoff.torch_us number          by PyTorch, µs
payoff.int8_us  number?         with all nodes as int8, µs; null where no output layer gets tables
payoff.largest_paying_k number? greatest share of nodes that is answered sooner than all are
payoff.timing   object          of these latencies, as `timing` of build-tables
timing          object          state: stable or disturbed; shares of disturbed calls, of medians whose rounds differ
verdict         text?           that no k keeps the allowed loss, or that choosing nodes does not pay
decided         flag            false: the verdict is not decided, as the machine was disturbed or rounds differ
""",
    "build-tables-last-layer": """
artifact        text?           folder written; null where tables do not pay
data            text            data set
network         text            file or factory of the network
runtime         text            library that runs the network up to its last layer
layer           text            the network's name of its last layer
nodes           integer         nodes of the last layer
features        integer         values that it receives
examples        integer         examples of the test split
ranker          text            how nodes are ranked
weight_dtype    text            float32 or int8
table_bytes     integer         bytes of the tables
table_share     number          the same over the bytes of the last layer
whole_us        number          latency of one query of the unmodified network, µs
front_us        number          latency of its part before the last layer, µs
full_us         number          latency with all nodes of the last layer, µs
promised_point  text            the least fixed k that promises the allowed loss
promised_us     number          latency at that point, µs
per_input_us    number?         latency with k chosen per input, µs; null where that promises no less than all nodes
promise         object          loss promised with which confidence, and by which point
alternatives    list            other ways to answer: accuracy, loss promised, latency in µs, speed-up
longest_list_tried integer      nodes of the longest list of popular nodes that was tried
points          list            per operating point: nodes, accuracy, latency in µs, speed-up over the whole network
accuracy_targets list           k chosen per input, by accuracy target
ideal_mean_k    number          mean share of nodes if each input's need were known
quickest        object          the quickest way that keeps the allowed loss, and whether it pays
tables          object?         the quicker way with tables, and whether it pays; null where no k keeps the allowed loss
timing          object          state: stable or disturbed; shares of disturbed calls, of medians whose rounds differ
verdict         text?           that no k keeps the allowed loss, or that choosing nodes does not pay
decided         flag            false: the verdict is not decided, as the machine was disturbed or rounds differ
""",
    "build-tables-share": """
network         text            file or factory of the network
layer           text            the network's name of its last layer
runtime         text            library that runs the network
nodes           integer         nodes of the last layer
whole_us        number          latency of one query of the unmodified network, µs
front_us        number          latency of its part before the last layer, µs
share           number          share of the latency that the last layer takes
saving          object          that share, its least and most of a round, and whether calls were undisturbed
timing          object          state: stable or disturbed; shares of disturbed calls, of medians whose rounds differ
verdict         text?           why choosing nodes cannot pay
decided         flag            false: the verdict is not decided, as the machine was disturbed or rounds differ
""",
    "build-tables-plan": """
layers          object          node counts of the activated layers
k               list            shares of nodes to prepare
ranker          text            how nodes are ranked
examples        integer         examples of the training split
most_table_bytes integer        bytes that tables may take
data            text            data set
payoff.k        list            shares of nodes
payoff.latency_us list          latency of one query at each, µs, by tables of few examples
payoff.full_us  number          with all nodes, µs
payoff.torch_us number          by PyTorch, µs
payoff.int8_us  number?         with all nodes as int8, µs; null where no output layer gets tables
payoff.largest_paying_k number? greatest share of nodes that is answered sooner than all are
payoff.timing   object          of these latencies, as `timing` of build-tables
verdict         text?           why choosing nodes cannot pay
decided         flag            false: the verdict is not decided, as the machine was disturbed or rounds differ
""",
    "evaluate": """
subject         text            name of the model
kind            text            kind of the artifact
artifact_id     text            its checksum
models          object          by version the checksum of its model
data            text            data set
split           text            test, validation or all
metric          text            p@1 or p@5
threads         integer?        compute threads
device          text            where it ran
machine         text            fingerprint id of the machine
examples        integer         examples answered
outcomes        text            outcome table written
points[].version text           operating point
points[].accuracy number        share answered correctly, or the metric's mean
points[].standard_error number  of that
points[].confidence number      mean confidence of the answers
points[].median_latency_s number seconds
points[].mean_latency_s number  seconds, of undisturbed calls
points[].mean_of_all_s number?  seconds, of all calls
points[].timing text?           stable or disturbed
accuracy_targets? list          SLO-NN: k chosen per input, by accuracy target
sweeps?         list            SLO-NN: the same over losses, also of the models compared
promise?        object          SLO-NN: loss promised with which confidence, and by which point
""",
    "evaluate-endpoints": """
outcomes        text            outcome table written
data            text            data set
split           text            all, train, validation or test
examples        integer         examples that every service was asked for
examples_asked_for integer      examples of the data set to ask for
requests        integer         calls made, those of earlier runs included
spent           number          their price
currency        text            of the price list; empty where it names none
limited         flag            the limits left examples that were not asked for
missing_answers integer         answers of the table that are missing
failures        object          by version, why its first missing answer is
versions[].version text         version
versions[].error number         mean error
versions[].confidence number    mean confidence
versions[].cost number          mean
versions[].median_latency_s number seconds
""",
    "family": """
artifact        text?           family written
outcomes        text?           outcome table written
latency         text?           latency table written
examples        integer         examples that every version answered
input_shape     list            shape of one example of the only input; empty where there are several
inputs[].name   text            input tensor
inputs[].datatype text          its datatype
inputs[].shape  list            its shape; −1 is any size
outputs[].name  text            output tensor
outputs[].datatype text         its datatype
outputs[].shape list            its shape; −1 is any size
classes         list            names of the classes; empty for other tasks
task            object          what answers mean, as in the artifact
renamed         object          by version, inputs and outputs: what the family calls a tensor, by its own name
versions[].version text         version, fastest first; the most accurate last
versions[].accuracy number      1 minus the error: of a classification the share of right answers
versions[].error number         mean error by the task
versions[].standard_error number of the error
versions[].confidence number    mean confidence
versions[].median_latency_s number seconds per example
versions[].mean_latency_s number seconds per example, of undisturbed calls
versions[].mean_of_all_s number? seconds per example, of all calls
versions[].timing text?         stable or disturbed
versions[].cost number          mean price of an answer; its seconds without a price
versions[].dominated flag       another version is no slower and more accurate
versions[].undecided list       versions that may be faster or slower, as the machine was disturbed
latency_timing  text?           of the latency table: stable or disturbed; null where none was asked for
""",
    "gen-rules": """
out             text            rules written
rules           object          the rules, as in the file
versions[].version text         version
versions[].error number         mean error
versions[].response_time_s number mean, seconds
versions[].cost number          mean
versions[].confidence number    mean confidence
versions[].pareto flag          no other version is as accurate, as fast and as cheap
categories      object          shares of examples by what slower versions change
budgets[].budget number         mean cost of a request that is allowed
budgets[].rule  text?           id of the strictest tier within it
budgets[].tolerance number?      its tolerance
budgets[].cost  number?         its mean cost
""",
    "import-outcomes": """
out             text            outcome table written
examples        integer         examples
missing_answers integer         answers that are missing, or abstain
currency        text            of the price list; empty where it names none
answers_known   flag            the table has answers, which some rules compare
features        list            further columns of numbers that were kept
versions[].version text         version
versions[].error number         mean error
versions[].confidence number    mean confidence
versions[].latency_s number     mean, seconds
versions[].cost number          mean
""",
    "plan": """
subject         text            name of the model
device          text?           device asked for, whose latencies count; null: the only one
deadline_ms     number          deadline, ms
attainment      number          least share of requests in time, as promised
min_accuracy    number          least mean accuracy of these, as promised; 0: any
confidence      number          with which both are to hold
arrivals        text            arrival table, or rate
requests        integer         requests that arrive
rate_per_s      number          at which they arrive on average
reserve_ms      number          of each deadline, for network and front end, ms
interference    text?           co-located latencies: their table, or one ratio; null: workers count as if alone
rules           text?           rule set by which requests of a tolerance are answered
best_version    text?           of the rules: serves where nothing cheaper may
cancels         flag?           with rules and artifact: whether a version that is not needed any more ends at once
strictest       flag            whether the plan is for the strictest tier that holds
objective       text?           what it saves, as asked for: response-time or cost of rules, or energy; null: either
seed            integer         of drawn arrivals and latencies
verify_s        number?         seconds of traffic sent to the served plan
fleets[].worker text            worker type
fleets[].threads integer        threads of each worker
fleets[].policy text            scheduling policy, or what requests ask for of the rules
fleets[].replicas integer       workers
fleets[].cost   number          price of all workers
fleets[].holds  flag            whether the promise holds
fleets[].confirmed flag         whether also with latencies drawn anew
fleets[].attainment number      share answered in time
fleets[].attainment_at_least number at this confidence
fleets[].accuracy number?       mean of those in time
fleets[].accuracy_at_least number? at this confidence; null where accuracies count as known
fleets[].effective_accuracy number share answered correctly and in time
fleets[].p99_us number?         latency of all requests, µs
fleets[].utilisation number     share of the time that workers compute
fleets[].mean_batch number      examples in one call
fleets[].calls  integer         calls of a model
fleets[].energy_j number?       joules of a request; null where the latency table has none
fleets[].version_calls object   with rules: calls of each version for a request, on average
fleets[].other_tier number      share of requests answered by a stricter tier, as their own could be late
fleets[].tiers  list            with rules: tolerance, share, objective, tier, rule, routing, bound, certified of each
fleets[].misses list            what of the promise is not shown to hold
fleets[].fewer  object?         the same figures with fewer workers, which do not hold it
fleets[].max_batch integer      most requests in a call
fleets[].max_queue integer      requests that may wait
explanation     text            why not one worker fewer
verified[].what text            planned, with the front end (as probed), or served
verified[].requests integer     requests of the stretch replayed
verified[].attainment number    share answered in time
verified[].accuracy number?     mean of those in time
verified[].p99_s number?        latency of all requests, seconds
kept            flag?           whether what was served kept the promise; null: not decided, or not verified
verdict         text            by how much; empty where not verified
out             text?           service file written
""",
    "plan-models": """
promises[].model text           name it is served under
promises[].subject text         name of the model in its latency table
promises[].deadline_ms number   deadline, ms
promises[].attainment number    least share of requests in time, as promised
promises[].min_accuracy number  least mean accuracy of these, as promised; 0: any
promises[].interference text?   latency table or ratio of calls beside busy workers; null: as if alone
promises[].arrivals text        arrival table, or rate
promises[].requests integer     requests that arrive
promises[].rate_per_s number    at which they arrive on average
confidence      number          with which attainment and accuracy of a model are to hold
requests        integer         requests that arrive, of all models
reserve_ms      number          of each deadline, for network and front end, ms
seed            integer         of drawn arrivals and latencies
verify_s        number?         seconds of traffic sent to the served plan
fleets[].kind   text            shared: all models on the same workers; apart: a fleet for each
fleets[].worker text            worker type; of different ones all, joined by +
fleets[].threads integer?       threads of each worker; null where they differ
fleets[].replicas integer       workers
fleets[].cost   number          price of all workers
fleets[].holds  flag            whether the promises of all models hold
fleets[].utilisation number     share of the time that workers compute
fleets[].max_queue integer?     requests of all models that may wait; null: each fleet has its own
fleets[].models list            of each model worker, replicas, policy, max_batch, holds, misses and the figures of plan
fleets[].fewer  object?         the same figures with a worker less, which does not hold them
explanation     text            what models take apart and together, and why not one worker fewer
verified[].model text           name of the model
verified[].what text            planned, with the front end (as probed), or served
verified[].requests integer     requests of the stretch replayed
verified[].attainment number    share answered in time
verified[].accuracy number?     mean of those in time
verified[].p99_s number?        latency of all requests, seconds
kept            flag?           whether what was served kept all promises; null: not decided, or not verified
verdict         text            by how much; empty where not verified
out             text?           service file written; of models apart that of the first
others          list            those of the other models apart
""",
    "gen-switching-plan": """
out             text            plan written
plan            object          the plan, as in the file
timing          text            whether the load tests were stable or disturbed
verdict         text?           that the rates are lower bounds
decided         flag            false: other processes disturbed the load tests
cores_busy_with_others number   cores that other processes kept busy meanwhile
""",
    "gen-switching-plan-dry-run": """
load_tests      integer         load tests to make, about
seconds         number          seconds that it may take
configurations  list            replicas and threads to try
""",
    "evaluate-rules": """
method          text            how the rules were made
tolerance_kind  text            relative, absolute or quantile
confidence      number          stated probability that no tier exceeds its tolerance
examples        integer         examples of the outcome table
folds           integer?        folds of a cross-validation
significance    number          level at which a violation counts
above_tolerance integer         checks in which the observed degradation exceeds the tolerance
violations      integer         tiers violated significantly
verdict         text            promote, keep or certify again
detectable_excess number        points of error above its tolerance from which a violation shows, about
tiers[].id      text            tier
tiers[].objective text          response-time or cost
tiers[].tolerance number        its tolerance
tiers[].worst_degradation number? greatest over the folds
tiers[].above_tolerance integer folds in which it exceeds the tolerance
tiers[].p_value number          of no violation, adjusted for tiers and folds
tiers[].violated flag           significantly
tiers[].degradation number?     mean over the folds
tiers[].response_time_s number  mean, seconds
tiers[].cost    number          mean
tiers[].response_time_saved number share of the best version's
tiers[].cost_saved number       share of the best version's
tiers[].groups  object          by group the degradation, mean over the folds; empty without groups
""",
    "export-rules": """
out             text            file written
tiers[].id      text            tier
tiers[].versions list           versions that it may ask, in order
""",
    "evaluate-drift": """
requests        integer         labelled requests
confidence      number          probability of no alarm while all guarantees hold
evidence_wanted number          evidence that raises an alarm
alarms          integer         ensembles whose guarantee is violated
confirmed       integer         guarantees that the labels alone show to hold
ensembles[].tier text           id of the tier with its tightest tolerance
ensembles[].point text          ensemble
ensembles[].tolerance number    that tolerance
ensembles[].mean_excess number  mean error beyond what is tolerated
ensembles[].evidence number     greatest evidence against the guarantee
ensembles[].alarm_at integer?   labelled requests until the alarm
ensembles[].confirmed_at integer? labelled requests until the labels alone showed it to hold
ensembles[].group text?         group whose requests are counted; null for all
""",
    "simulate": """
subject         text            name of the model
device          text?           device asked for, whose latencies count; null: the only one
points          integer         operating points
workers         integer         workers
deadline_ms     number          deadline, ms
arrivals        text            arrival table
noise           flag            whether latencies are drawn from samples
quantile        number          of latency that policies plan with
seed            integer         of the noise
best_by         text            how the best possible was found
best_possible   number          effective accuracy that no policy can exceed
policies[].policy text          scheduling policy
policies[].queries integer      queries that arrived
policies[].attainment number    share answered in time
policies[].accuracy number?     of those in time
policies[].effective_accuracy number share answered correctly and in time
policies[].late integer         answered after the deadline
policies[].expired integer      dropped: the deadline had passed
policies[].rejected integer     dropped: the deadline could not be met
policies[].drops integer        all dropped
policies[].mean_batch number    examples in one call
policies[].utilisation number   share of the time that workers compute
policies[].calls integer        calls of a model
policies[].regret number        best_possible less effective_accuracy
log             text?           table of what became of every query, where it was asked for
""",
    "serve": """
url             text?           where the server listens, HTTP; null where it is only checked
port            integer?        its port; null likewise
grpc            text?           where it listens, gRPC
models          object          operating points by model
default_deadline_ms number?     deadline of requests that set none, ms
devices         list            cpu, or the GPUs that workers compute on in turn
""",
    "loadtest": """
subject         text            name of the model
server          text            its address
endpoint        text            protocol of the requests
terms           object          options of each request
arrivals        text            arrival process or table
rate_per_s      number          requests per second asked for
duration_s      number          seconds asked for
seed            integer         of the draw
data            text            data set
split           text            always test
machine         text            fingerprint id of the client's machine
processes       integer         client processes
priority        text?           of the requests, or shares by priority
tolerances      text?           shares of the requests by tolerance
requests        integer         requests sent
answered        integer         requests answered
drawn_rate_per_s number?        rate of the arrivals drawn
achieved_rate_per_s number?     rate at which the client sent
p50_s           number?         quantile of latency, seconds from when a request was due
p90_s           number?         the same
p99_s           number?         the same
worst_s         number?         greatest latency, seconds
deadline_s      number?         deadline, seconds
deadline_meet_rate number       share of all requests answered in time
deadline_meet_rate_from_sending number the same, counted from when a request was sent
effective_accuracy number?      share of all requests answered correctly and in time; null where classes are unknown
accuracy_of_answered number?    share of answered requests that are correct
send_delay_p99_s number?        how late the client sent, seconds
send_delay_max_s number         greatest such delay, seconds
energy_j        number?         joules that the machine took meanwhile, all that runs on it included
energy_unknown  text?           why that is not known
energy_j_per_answer number?     the same by answered request
statuses[].status integer       HTTP status, 0 for none
statuses[].requests integer     requests with it
statuses[].error text           one of their errors
points[].point  text            operating point that answered
points[].requests integer       requests
points[].share  number          of all answered
points[].accuracy number?       of these
points[].median_latency_s number seconds
priorities[].priority integer?  priority of the requests
priorities[].requests integer   requests
priorities[].answered number    share answered
priorities[].deadline_meet_rate number share answered in time
priorities[].effective_accuracy number? share answered correctly and in time
by_tolerance[].tolerance number     tolerance of the requests (--tolerance)
by_tolerance[].requests integer     requests
by_tolerance[].answered number      share answered
by_tolerance[].deadline_meet_rate number share answered in time
by_tolerance[].effective_accuracy number? share answered correctly and in time
faults[].fault  text            what was injected (--faults)
faults[].at_s   number          when it was to be, seconds from the start
faults[].injected_s number      when the server had done it
faults[].error  text            why it was not injected; empty where it was
faults[].attainment_before number? share answered in time, of up to 10 s before
faults[].accuracy_before number? accuracy of those answered
faults[].attainment_after number? share answered in time, until the next fault
faults[].accuracy_after number? accuracy of those answered
faults[].attainment_worst number? attainment of the worst second after it
faults[].recovered_s number?    seconds until attainment was within a point of before; null: not before the next fault
over_time[].begin_s number      second of the load
over_time[].requests integer    requests due in it
over_time[].attainment number?  of these, answered in time
over_time[].accuracy number?    accuracy of those answered
over_time[].effective_accuracy number? of all, answered correctly and in time
target          number?         effective accuracy that was to be reached
log             text            request log written
""",
    "report": """
report          text            HTML file written
bytes           integer         its size
plots[].id      text            id of the plot
plots[].title   text            its title
plots[].png     text            PNG file of it
plots[].source  text            file it is drawn from
plots[].caption text            one sentence on what to see
figures         object          the summary's figures
not_drawn       object          files without a plot, and what they are
""",
}
# Documents with the keys of another.
_SAME = {f"profile-{kind}{end}": f"profile-solo{end}" for kind in ("colocated", "points") for end in ("", "-plan")}
_TYPES: Mapping[str, tuple[type, ...]] = {
    "text": (str,), "integer": (int,), "number": (int, float), "flag": (bool,), "list": (list,), "object": (dict,),
}  # fmt: skip
_INTRODUCTION = """# JSON documents

With `--json` a command prints one document instead of tables. Its `schema` is `slotool/` and the name below, its
`schema_version` a whole number that changes with the keys. A number that is not finite is `null`. Units are in the key
or in the meaning.

`a[].b` is the key `b` of each object in the list `a`; `a{}.b` that of each value of the mapping `a`. *Optional* keys
may be missing, `or null` ones are there always. Objects and lists without keys of their own here are described in
[tables](tables.md), [artifacts](artifacts.md) and the help of the command.
"""


class Key(NamedTuple):
    """Key of a document; ``parent`` is the object that holds it, ``""`` at the top, else as ``points[]``."""

    parent: str
    name: str
    optional: bool
    type: str
    nullable: bool
    meaning: str


def keys_of(document: str) -> list[Key]:
    """Return the keys of a document, as ``train-predictor``. Raises ``KeyError`` for one without description."""
    keys = []
    for line in DOCUMENTS[_SAME.get(document, document)].replace("{SETTING}", SETTING).strip().splitlines():
        if line:
            path, kind, meaning = line.split(maxsplit=2)
            parent, _, name = path.rpartition(".")
            keys.append(
                Key(parent, name.rstrip("?"), name.endswith("?"), kind.rstrip("?"), kind.endswith("?"), meaning)
            )
    return keys


def differences(document: Mapping[str, Any]) -> list[str]:
    """Return a sentence for each difference between a printed document and its description."""
    name = document["schema"].removeprefix("slotool/")
    keys = keys_of(name)
    body = {key: value for key, value in document.items() if key not in ("schema", "schema_version")}
    wrong = []
    for parent in {key.parent for key in keys} | {""}:
        here = {key.name: key for key in keys if key.parent == parent}
        # What the parent of deeper keys is itself need not be said; it may be missing where all of these may.
        deeper = [key for key in keys if key.parent] if not parent else []
        named = {key.parent.rstrip("[]{}") for key in deeper}
        needed = {key.parent.rstrip("[]{}") for key in deeper if not key.optional}
        for values in _at(body, parent):
            missing = [key.name for key in here.values() if not key.optional and key.name not in values]
            wrong += [f"{name}: {parent}.{key} is missing" for key in missing + [n for n in needed if n not in values]]
            wrong += [f"{name}: {parent}.{key} is not described" for key in values if key not in {*here, *named}]
            wrong += [
                f"{name}: {parent}.{key} is {value!r}, not {here[key].type}"
                for key, value in values.items()
                if key in here and not _is(value, here[key])
            ]
    return wrong


def _at(body: Mapping[str, Any], parent: str) -> Iterator[Mapping[str, Any]]:
    """Yield the objects at ``points[]``, ``predictors{}`` or the top."""
    if not parent:
        yield body
    elif parent.endswith("[]"):
        yield from body.get(parent[:-2], [])
    elif parent.endswith("{}"):
        yield from body.get(parent[:-2], {}).values()
    else:
        yield body[parent]


def _is(value: Any, key: Key) -> bool:
    if value is None:
        return key.nullable
    return isinstance(value, _TYPES[key.type]) and (key.type == "flag" or not isinstance(value, bool))


def page() -> str:
    """Return the page: a section per document."""
    return "\n".join([_INTRODUCTION, *map(_section, [*DOCUMENTS, *_SAME])])


def _section(name: str) -> str:
    if name in _SAME:
        same = _SAME[name]
        return f"## {name}\n\nKeys as of [{same}](#{same}).\n"
    lines = [f"## {name}", "", "| key | type | meaning |", "|---|---|---|"]
    for key in keys_of(name):
        path = f"{key.parent}.{key.name}" if key.parent else key.name
        kind = key.type + (" or null" if key.nullable else "") + (", optional" if key.optional else "")
        lines.append(f"| `{path}` | {kind} | {key.meaning} |")
    return "\n".join([*lines, ""])
