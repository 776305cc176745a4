"""Questions of many other kinds, for practice in matching a question with a column by meaning.

A model that only ever saw the six training kinds could learn their wordings by heart.  These
families give it many more labels, each with wordings of its own, most of which do not hold the
label.  The kinds held out from training, and the six training kinds, have no family here.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple


class Family(NamedTuple):
    """One kind of question: the labels a column may bear, and wordings with slots."""

    labels: tuple[str, ...]
    wordings: tuple[str, ...]


# A compact table keeps the families readable side by side: "= labels = wording | wording ...".
# A line break within a family is only a space.
_TABLE: Final = r"""
= discounts sales rebates = A {thing} costs {m} euros and is marked down by {p}%. What is the new
price? | Take {p}% off a price of {m} pounds. | {name} waited until {month} because the {thing}
would be {p}% cheaper. It had cost {m} euros; what was paid? | Which is the better offer on a
{thing} at {m} euros: {p}% off, or {n} euros off? | After a reduction of {p}% the {thing} sells
for {m} euros. Find the original price. | How much does {name} save on a {m} euro {thing} with a
coupon worth {p}%?
= ages generations = {name} is {n} years old and {other} is {k} times as old. How old is {other}?
| In {k} years {name} will be {n}. How old is {name} now? | A mother was {n} when {name} was born.
{name} is {k} today; give the mother's years. | {k} years ago {name} was half as old as {other},
who is now {m}. Find how old {name} is. | Together {name} and {other} have lived {m} years, and
{name} has lived {k} more. Split it.
= taxes duties tariffs = {name} earns {big} euros and the state keeps {p}%. How much goes to the
state? | Add {p}% VAT to a net price of {m} euros. | Importing a {thing} worth {m} euros costs an
extra {p}% at the border. What is the charge? | The first {big} euros are free and the rest is
charged at {p}%. What does {name} owe? | A gross amount of {m} euros includes {p}% for the
treasury. What is the net amount?
= tiles floors mosaics = A bathroom measures {n} by {k} metres. How many slabs of half a metre
square cover it? | How many squares of side {k} cm are needed to cover a {m} by {m} cm wall? |
{name} lays {colour} and white squares in turn on a {k} by {n} grid. How many are {colour}? |
Cover a hall of {n} by {n} metres with ceramic squares of side {k} decimetres; count them. | Work
out what it takes to pave a patio {n} m long and {k} m wide with one metre slabs.
= fences posts hedges = A farmer encloses a field of {n} by {m} metres. How much wire is needed? |
Stakes stand every {k} metres along a line of {m} metres. How many stakes are there? | {name} has
{m} metres of wire. What is the largest square paddock it can surround? | How many poles does it
take to go round a {n} by {n} metre garden, one every {k} metres? | Surround the meadow, {m} m by
{n} m, leaving a gate {k} m wide. Give the length to buy.
= areas surfaces plots = A rectangle is {n} cm wide and {m} cm long. How many square centimetres
is that? | How much ground does a round garden with radius {k} metres take up? | Find the size in
square metres of a triangle with base {n} m and height {k} m. | {name} buys land {m} metres by {n}
metres near {town}. How many hectares is it? | All sides of a cube of edge {k} cm are {colour}.
How many square cm are {colour}?
= angles corners triangles = Two angles of a triangle measure {n} and {p} degrees. What is the
third? | How many degrees are there inside a polygon with {k} sides? | A slice of pizza is one of
{k} equal slices. How wide is its tip in degrees? | Give the complement and the supplement of {n}
degrees. | {name} turns a wheel by {m} degrees and then back by {n}. What single turn is this? |
The legs of a right-angled shape are {k} and {n}. Find its longest side.
= dice odds probabilities = Two six-sided cubes are thrown. What is the chance of a sum of {k}? |
How likely is it to roll a six at least once in {k} throws? | {name} wins if the roll is even and
{other} wins otherwise. Who is favoured with {k} rolls? | What is the chance of drawing a {colour}
card when {k} of {m} cards are {colour}? | One raffle ticket in {m} wins, and {name} has {k}. How
good are the prospects? | On average, what do {k} rolls of a fair cube add up to?
= coins pennies = In how many ways can {n} be paid with ones, fives and tens? | A penny is tossed
{k} times. How often do we expect heads? | Pay {m} with as few pieces of money as you can. |
{name} has {n} dimes and {k} quarters in a pocket. What are they worth in dollars? | One of {k}
pieces of gold is fake and lighter. How many weighings on a balance find it?
= temperatures thermometers weather = It was {k} degrees at dawn and rose by {n}. How warm did it
get? | Convert {m} degrees Fahrenheit to Celsius. | What is {n} degrees Celsius on the Kelvin
scale? | {town} had {k} degrees of frost at night while {city} had {n} degrees of heat. Give the
gap. | Is {month} in {town} normally warm enough for shorts? | It gets {k} degrees colder for each
kilometre {name} climbs. How cold is it {n} km up?
= trains railways = Two expresses leave {town} and {city}, {m} km apart, at {n} and {p} km/h.
Where do they meet? | How many carriages are needed for {m} passengers if each one seats {n}? |
Plan the journey from {town} to {city} by rail with no more than {k} changes. | {name} sits in
carriage {k} of {n}. How many carriages are behind? | A locomotive {m} metres long crosses a
bridge of {m} metres at {p} km/h. How long does it take?
= calendars dates months = How many days are there from {date} to {date2}? | Is {year} a leap
year? Say yes or no. | {name} rents a {thing} on {date} for {n} days. On which date must it be
given back? | Which month comes {k} months after {month}? | Write {date} {year} in the form
year-month-day.
= weekdays = Today is {day}. What will it be in {m} days? | If {date} is a {day}, on which day
does {date2} fall? | {name} goes to the gym every {k} days, starting on {day}. When is the gym
next on a Sunday? | The {thing} was ordered on {day} and took {n} days to come. On what day did it
come? | What comes two days before the day after {day}?
= capitals countries = Where does the government of {country} sit? | {name} flies to {country} and
lands in its seat of government. Which city is that? | Is {town} the capital of {country}? If not,
what is? | In which country would you find {city}? | Pair {country} with its main city and with
its continent.
= planets moons orbits = Which body is number {k} from the Sun? | How many satellites does Jupiter
have, to the nearest ten? | {name} weighs {n} kg on Earth. What would the scales say on Mars? |
Light takes eight minutes from the Sun to us. How far is that in kilometres? | How many Earth days
make a year on Venus?
= rhymes poems verses = Find a word that sounds like "{word}" at the end. | Which of these go
together by sound: {words}? | Write {k} lines about a {animal} in which the ends chime. | {name}
needs a partner for "{word}" in the last line of a song. Offer three. | Make a limerick about a
{animal} from {town}. | Does "{word}" go with "{pair}" in a couplet?
= synonyms thesaurus = Give another word that means the same as "{adj}". | Which of these is
closest in meaning to "{adj}": {adjs}? | {name} has used "{adj}" {k} times in one essay. Suggest
what to write instead. | Replace "{adj}" in "a {adj} {animal}" with a word of like meaning. | List
{k} ways of saying "{adj}" without using that word.
= opposites antonyms = What is the reverse of "{adj}"? | Turn it round: the {animal} was {adj}. |
Which of {adjs} is furthest in meaning from "{adj}"? | {name} always says the contrary of {other}.
{other} says "{adj}". What does {name} say? | Give a word that means not at all {adj}, without
using "not".
= anagrams jumbles = Rearrange the characters of "{word}" to make another word. | Which English
word can be made from a jumble of "{word}"? | Can "{word}" be made with the same characters as
"{pair}"? | {name} dropped the game pieces spelling "{word}". What else could they spell? | How
many different arrangements does the word "{word}" have?
= palindromes mirrors = Does "{word}" read the same from both ends? | What is the next number
after {big} that reads the same backwards? | Does it matter from which end one reads "{word}"? |
{name} likes words such as "level" and "noon". Would {name} like "{word}"? | Find a year after
{year} that looks the same from left and from right.
= spellings typos = Is "{word}" written correctly here? | Correct the mistakes: "{name} recieved a
{colour} {thing} yesturday." | How many times does the vowel e occur in "{word}"? | {name} cannot
write "neccessary". Show how it is done and give a way to remember it. | British or American:
"colour", "{word}", "center"? Say which is which.
= plurals nouns = There is one {animal} here, but there are many what? | What do you call more
than one "{thing}"? | Give the form for several: mouse, {animal}, child, {thing}. | {name} writes
"{k} {animal}" in a story. Repair the noun. | Is "sheep" one or many in "{k} sheep met one
{animal}"?
= translations languages = How do you say "{adj}" in {lang}? | Put this into {lang}: "{sentence}"
| {name} is in {country} and wants to ask for a {thing}. Which words should {name} use? | What
does the {lang} word for "{animal}" sound like? | Render "{sentence}" in {lang}, in a polite form.
| From which tongue does English have the word "{word}"?
= verbs tenses conjugations = Put "{name} {act} to {town}" in the past. | What is the past
participle of "sing"? | Fill the gap: by {year} {name} ___ (to live) in {town} for {k} years. |
Change into the future: "{name} {act} with {other}." | How is "to be" formed for I, you and they
in {lang}?
= grammar commas adjectives = Which words in "{sentence}" are nouns? | Where do the punctuation
marks go: {name} bought a {thing} a {animal} and a lamp | "{name} and me" or "{name} and I" went
to {town}? | Underline the subject of this clause: "{sentence}" | Say whether "{adj}" describes a
thing or an action in "the {adj} {animal}".
= sentiments reviews moods = Is this happy or angry: "The {thing} broke after {k} days."? | Rate
from 1 to 5 how pleased the writer is: "What a {adj} {thing}!" | {name} wrote to the hotel in
{town}: "{adj}, never again". Was {name} content? | "I would buy this {adj} {thing} again": did
the customer like it? | Positive, negative or neutral: "{sentence}"
= summaries headlines abstracts = Shorten to {k} words: "{sentence} Then {name} went home to
{town} and slept." | Say in one line what a report of {m} pages on {things} in {country} might
conclude. | {name} has no patience. Tell the story of Romeo and Juliet in {n} words. | Give a
title for an article about a {animal} found in {town}. | What is the main point: "{sentence}
{name} was {adj}, but {other} was not."?
= programs bugs functions = Write Python that prints the first {n} squares. | What does this
print: for i in range({k}): print(i * {n})? | {name}'s loop never ends: while x > {k}: x = x + 1.
Why? | Sort a list of {m} {things} by name in Java. | How many steps does a binary search over
{big} items need? | Repair this: def f(x) return x + {k}
= queries databases tables = SELECT all {things} made after {year} and group them by town. | How
do I join customers with orders in SQL and keep those without an order? | {name} wants the {k}
best-selling {things} of {month} from the records. Write the statement. | Count the rows in which
the column town is '{town}'. | Delete every entry older than {n} days from a log, safely.
= regexes patterns = Does ^[a-z]+$ match "{word}{n}"? | Write an expression that matches every
string of exactly {k} digits. | {name} wants to find all e-mail addresses in a long text. What
should {name} search for? | What does \d+\s{word} find in "{n} {word}, {m} {pair}"? | Match words
which begin with "st" and end in "s".
= fractions halves thirds = Add {frac} and {frac2} and simplify the result. | {name} ate {frac} of
a cake and {other} ate half of the rest. What part is left? | By how much do {frac} and {frac2} of
{m} differ? | Write {p} hundredths in lowest terms. | Divide {frac} of a pie into {k} parts.
= primes = Is {big} divisible only by one and itself? | What is the smallest number above {m} with
no proper divisors? | How many numbers below {m} cannot be split into smaller whole factors? |
{name} says that {m} cannot be a product of two smaller numbers. Is that right? | Is {m} a sum of
two numbers that no other number but one divides?
= factors divisors multiples = What is the greatest number that divides both {m} and {big}? |
Break {big} into a product of primes. | Find the least number that both {n} and {k} go into. | Can
{m} {things} be shared evenly among {k} children? | By how many whole numbers can {m} be divided
with nothing left over? | What remains when {big} is divided by {k}?
= sequences progressions = What comes next: {series}, ...? | Find term number {n} if we start at
{k} and add {n} each time. | {name} saves {k} euros in week one and doubles it weekly. How much is
saved in week {k}? | Which number does not belong: {series}, {m}? | The rule is "double and add
{k}". Start at {n} and give five terms. | Fill in the missing number: {series}, __, {m}.
= averages means medians = {name} got {numbers} points. What is the typical result? | Find the
middle value of {numbers}. | {k} players are {n} years old on the whole, and one of {m} joins.
What now? | Add up {numbers} and divide by how many there are. | What must {name} get in the next
test to keep a mean of {p} after {numbers}?
= percentages shares = How much is {p} percent of {m} {things}? | {n} of {m} pupils have a
{animal}. Give this out of a hundred. | The town of {town} grew from {big} people by {p}%. How
many live there now? | {name} owns {n} parts of {m} in a firm. How large a part is that in per
cent? | Up {p}% and then down {p}%: where does {m} end?
= equations unknowns algebra = For which x is x squared minus {n}x equal to {m}? | {name} thinks
of a number, multiplies it by {k}, adds {n} and gets {m}. What was it? | Two numbers have the sum
{m} and the difference {k}. Find both. | x + y = {m} and x - y = {n}. What is y? | Make t the
subject of v = {k} + {n}t.
= matrices vectors determinants = Is the array [[{k}, {n}], [{n}, {k}]] invertible? | Find the dot
product of ({k}, {n}) and ({n}, {m}). | Transpose this: [[{k}, {m}], [{n}, {k}]] | How long is the
arrow from the origin to ({k}, {n})? | {name} multiplies a {k} by {n} grid of numbers by a {n} by
3 grid. What is its size?
= sets unions overlaps = {m} pupils play chess, {n} sing, and {k} do both. How many do at least
one? | Which items are in both lists: {words} and {words2}? | How many subsets does a collection
of {k} things have? | A = numbers up to {m}, B = multiples of {k}. How many belong to A but not to
B? | Of {m} guests {n} know {lang} and {p} Dutch. At least how many know both?
= graphs networks = Each of {k} towns has a road to each other one. How many roads? | Find the
shortest path from {town} to {city} if the links are {numbers} km long. | Can {name} cross every
bridge of {town} exactly once? | {k} computers are joined in a ring. How many cables must fail
before it falls apart? | How many colours does a map of {k} countries need at most?
= mazes labyrinths = Find the way out: all {k} paths end blind. | Will keeping one hand on the
wall bring {name} to the exit? | Rooms A to F have doors A-B, B-D, D-F and C-E. Can {name} get
from A to F? | {name} is lost among {n} corridors, of which {k} are dead ends. What is a sure way
out? | How many different ways lead through a {k} by {k} grid?
= chess openings checkmates = White: Kg1, Qd{k}; Black: Kg8. Can White mate in two? | Where can a
knight on e4 jump? | What is the best reply to 1. e4 c5? | {name} has a rook and {other} has a
bishop. Who should win the ending? | How many squares can a queen reach from the corner of an
empty board?
= elections votes parliaments = {name} got {m} ballots and {other} got {big}. What was the
majority? | How many seats does a party with {p}% get in a house of {m}? | Who was head of state
of {country} in 1950? | {big} people may go to the polls in {town} and {p}% go. How many is that?
| Explain proportional representation in {k} sentences.
= recipes meals dishes = How long should a goose of {k} kg stay in the oven? | {name} needs {n} g
of flour for {k} people. How much for {m} people? | What can I cook with rice, onions and a
{colour} pepper? | Which dish is typical of {town}? | Potatoes need {n} minutes at {m} degrees.
How long at {p} degrees more?
= salaries wages jobs = {name} gets {n} euros an hour and works {m} hours. What is the pay? | A
{job} makes {big} euros a year. How much is that a month? | {name} asks for a rise of {p}% on
{big} euros. What would the new pay be? | What does a {job} in {country} usually earn? | Overtime
pays {p}% more. {name} worked {k} hours extra at {n} euros. How much more?
= loans interest mortgages = {name} borrows {big} euros at {k}% a year. What is owed after {k}
years? | How long until {m} euros double at {k} per cent? | A bank lends {big} euros for {n}
months. What is the monthly rate to repay? | {name} puts {big} euros in a savings account at {k}%.
How much is there after {n} years? | Fixed at {k}% or variable: which is safer for a house in
{town}?
= currencies exchanges = How many dollars are {m} euros at 1.{n} dollars each? | {name} comes back
from {country} with {big} in foreign notes. What are they worth at home? | What money do people
use in {country}? | Turn {m} pounds into yen at {m} yen a pound. | The bank in {town} keeps {k}%
when it swaps {big} francs. How much does {name} get?
= kin cousins relatives = {name} is the brother of {other}'s mother. What is {name} to {other}? |
What do you call the daughter of my uncle? | {name} has {k} sisters, and each has one brother. How
many children are there? | {name}'s father is {other}'s only son. How are {name} and {other}
related? | How many great-grandparents does {name} have?
= birthdays anniversaries = {name} was born on {date} {year2}. How many candles are on the cake in
2030? | Among {n} people, how likely do two share the day they were born? | {name} and {other} wed
in {year2}. When is their golden jubilee? | Which day of the week was {date} {year2}, when {name}
was born? | What present would suit a {job} who turns {n}?
= pages books chapters = {name} reads {n} leaves a day. When is a novel of {m} done? | How many
digits are printed to number a novel of {m} leaves? | Who wrote "Pride and Prejudice"? | {name}
has read {p}% of {m}. How much is still to be read? | A library in {town} lends {m} novels a day.
How many in {k} weeks?
= speeds velocities = A car does {m} km in {k} hours. How fast is it? | How many metres per second
are {p} km/h? | {name} cycles at {n} km/h to {town}, {m} km away. How long is the ride? | The
{animal} runs twice as fast as {name}, who starts {m} m ahead. Where is {name} caught? | {name}
drives out at {n} and back at {p} km/h. What is the overall pace?
= formulas molecules elements = Balance the reaction Fe + O2 -> Fe2O3. | How many atoms are there
in {k} units of C6H12O6? | Which metal has atomic number {n}? | {name} burns {m} g of carbon. How
much carbon dioxide forms? | What kind of bond holds a diamond together?
= genes heredity chromosomes = Both parents have brown eyes. Can {name} have blue ones? | How many
pairs does a human cell have? | Give the strand that pairs with ATTGCA. | A {colour} pea is
crossed with a white one. What do their {m} offspring look like? | {name} and {other} carry a
recessive trait. How likely does a child show it?
= history battles kings = What happened in {country} in {year}? | How many years passed between
{year} and {year2}? | {name} is writing on the siege of {town}. When was it? | Why did the First
World War break out? Give {k} causes. | Who ruled over {country} in the year {year}?
= laws courts contracts = May {name}'s landlord in {town} raise the rent by {p}%? | {name} signed
for a {thing} but wants to give it back after {k} days. Is that allowed? | From what age may one
drive in {country}? | Which clause protects a {job} from being dismissed? | A {animal} belonging
to {name} bit {other}. Who has to pay?
= proofs theorems = Show that the square root of {k} or of 2 is irrational. | Prove by induction
that 1 + 2 + ... + n = n(n + 1)/2. | Is it true that n squared + n is always even? Give reasons. |
{name} claims that all {things} are {colour} because {k} of them are. Find the flaw. | Why are
there infinitely many primes? Argue in {k} steps.
= syllogisms deductions = All {things} are {adj}. This is one of the {things}. What follows? | No
{animal} can fly, and Rex flies. Is Rex a {animal}? | If it snows, {name} stays in. {name} is out.
Does it snow? | Some {things} are {colour} and all that is {colour} is {adj}. Are some {things}
{adj}? | Valid or not: every {job} sings; {name} sings; so {name} is a {job}?
= riddles puzzles = What has {k} legs in the morning and none at night? | I have a face but no
eyes, and hands but no arms. What am I? | The more you take away, the larger I grow. Guess me. |
{name} lives on floor {n} but always gets out on floor {k}. Why? | A {animal}, a goose and a sack
of corn must cross; the boat takes one. How?
= colours hues shades = What is the complement of {colour} on the wheel? | Which hue goes well
with a {colour} {thing}? | Give the hexadecimal value of {colour}. | {name}'s {thing} is {colour},
{other}'s is not. There are {k} kinds; how many may {other}'s be? | How many bands does a rainbow
have, and where is {colour}?
= maps atlases borders = On paper it is {k} cm at 1:{big}. How far is it on the ground? | Which
states share a frontier with {country}? | Give latitude and longitude of {town}. | {name} unfolds
a sheet of {country} at 1:{big}. How wide is {m} km on it? | How far is {town} from the equator?
= weights kilograms scales = A {animal} of {m} kg is put on the scales with {name}, {n} kg. What
do they show? | How many grams are there in {n} ounces? | {k} {things} are as heavy as {n} bricks
of 2 kg. How heavy is one? | {name} lost {k} kg and then gained {n} g, starting from {p} kg. And
now? | May {name} check in a suitcase of {n} kg if the limit is {p} kg?
= lengths rulers heights = How many inches are there in {m} cm? | A ribbon of {m} cm is cut into
{k} pieces of the same size. How big is each? | {name} grew from {m} cm by {n} mm. How tall is
{name} now? | Express a height of {big} millimetres in metres. | The shadow of a tower is {n} m
while a stick of 1 m throws {k} m. How tall is the tower?
= melodies chords tunes = Which notes make up a C major triad? | {name} hums {k} bars of a song in
three-four time. How many beats? | Who composed the Moonlight Sonata? | What interval lies between
C and G? | A song has {m} beats at {p} beats a minute. How long does it last? | Which instrument
would suit a {adj} lullaby?
= animals birds mammals = How many legs do {n} spiders and {k} beetles have? | What does a
{animal} eat in winter? | Heads: {n}, feet: {m}. How many hens and how many rabbits are on the
farm? | {name} saw a {colour} creature with six legs near {town}. What might it be? | Is a
{animal} a reptile? Give your reasons.
= plants trees flowers = When should {name} sow beans in {country}? | {k} oaks stand in each of
{n} rows. How many oaks is that? | Which leaf has {k} points and turns {colour} in autumn? |
{name}'s rose has {colour} spots. What is wrong with it? | A sapling grows {n} cm a year from {m}
cm. How tall is it after {k} years?
= symptoms illnesses = {name} has had a headache for {k} days. What could it be? | What should
{name} do about a swollen ankle? | How long is one ill with measles? | A {job} of {n} has a sore
back each {day}. Should {name} see a doctor? | Which vaccine is needed before a trip to {country}?
= permutations arrangements combinations = In how many ways can {k} {things} be put on a shelf? |
How many teams of {k} can be picked from {n} players? | {name} has {k} shirts and {n} hats. How
many outfits is that? | Everyone of {n} guests shakes hands with everyone. How many handshakes? |
How many three-digit numbers use no digit twice and exceed {m}?
= binaries bits numerals = Write {m} with noughts and ones only. | What is {year} in Roman
figures? | How many different values fit in {k} places of base two? | {name} sees MCMXL on a stone
in {town}. Which year could be meant? | Write the number {big} in base sixteen.
"""


def _parse(table: str) -> dict[str, Family]:
    """Read the table into families, each under its first label."""
    families: dict[str, Family] = {}
    for block in ("\n" + table.strip()).split("\n= ")[1:]:
        head, _, rest = " ".join(block.split()).partition(" = ")
        labels = tuple(head.split())
        families[labels[0]] = Family(labels, tuple(rest.split(" | ")))
    return families


FAMILIES: Final[Mapping[str, Family]] = MappingProxyType(_parse(_TABLE))
LABELS: Final[tuple[str, ...]] = tuple(
    label for family in FAMILIES.values() for label in family.labels
)

KNOWLEDGE: Final[frozenset[str]] = frozenset(
    label
    for family in FAMILIES.values()
    for label in family.labels
    if {
        "capitals", "planets", "history", "maps", "animals", "plants", "laws", "symptoms",
        "recipes", "formulas",
    }.intersection(family.labels)
)  # fmt: skip
"""The labels of the kinds that ask for what has to be known, not for what can be worked out."""

# The drawing order of the families is fixed, so that one seed always gives one question.
_ORDER: Final = tuple(FAMILIES.values())

# The same kind of table for the slots: "pool: its words".
_POOL_TABLE: Final = """
name: Ada Bruno Clara Daniel Edda Farid Greta Hugo Ines Jonas Karim Lena Mateo Nora Otto Paula
town: Lyon Oslo Porto Kyoto Bergen Graz Turin Leeds Quito Cork Dakar Hanoi Lima Riga Ghent Basel
country: Peru Norway Kenya Japan Chile Poland Egypt Canada Vietnam Greece Mexico Finland Ghana
thing: lamp bicycle carpet jacket camera ladder guitar pillow sofa telescope blanket tent
animal: wolf fox cat dog badger hedgehog goat hare donkey mouse pony beaver
word: stone garden listen level racer kayak planet window thunder orange candle finger winter
adj: happy quick brave quiet clever lazy strange gentle bitter huge tiny ancient shiny rude calm
job: nurse baker teacher plumber lawyer farmer pilot carpenter dentist singer
act: goes runs writes speaks drives sings flies
colour: red green blue yellow purple brown grey black
lang: French Spanish German Italian Polish Swahili Turkish Latin
day: Monday Tuesday Wednesday Thursday Friday Saturday
month: January February March April May June July August September October November December
"""
_POOLS: Final = {
    pool: words.split()
    for pool, words in (line.split(": ") for line in _POOL_TABLE.strip().splitlines())
}
_SENTENCES: Final = (
    "The children found a small dog in the park.",
    "My sister has never liked the new house.",
    "Our neighbour plays the trumpet every evening.",
    "We had a lovely week in the mountains.",
)


def _slots(rng: random.Random) -> dict[str, str]:
    """Draw a value for every slot; slots that may stand side by side differ."""
    name, other = rng.sample(_POOLS["name"], 2)
    town, city = rng.sample(_POOLS["town"], 2)
    thing, more = rng.sample(_POOLS["thing"], 2)
    words = rng.sample(_POOLS["word"], 8)
    adjectives = rng.sample(_POOLS["adj"], 4)
    months = rng.sample(_POOLS["month"], 2)
    first, step = rng.randint(1, 20), rng.randint(2, 9)
    below, above = rng.sample(range(3, 13), 2)
    single = ("country", "animal", "job", "act", "colour", "lang", "day")
    return {slot: rng.choice(_POOLS[slot]) for slot in single} | {
        "n": str(rng.randint(13, 60)),
        "m": str(rng.randint(61, 480)),
        "k": str(rng.randint(2, 8)),
        "p": str(rng.randrange(5, 85, 5)),
        "big": str(rng.randint(1000, 60000)),
        "year": str(rng.randint(1100, 1899)),
        "year2": str(rng.randint(1930, 2015)),
        "frac": f"{rng.randint(1, below - 1)}/{below}",
        "frac2": f"{rng.randint(1, above - 1)}/{above}",
        "numbers": ", ".join(str(rng.randint(2, 90)) for _ in range(5)),
        "series": ", ".join(str(first + step * place) for place in range(4)),
        "name": name,
        "other": other,
        "town": town,
        "city": city,
        "thing": thing,
        "things": f"{more}s",
        "word": words[0],
        "pair": words[1],
        "words": ", ".join(words[:4]),
        "words2": ", ".join(words[2:6]),
        "adj": adjectives[0],
        "adjs": ", ".join(adjectives[1:]),
        "month": months[0],
        "date": f"{rng.randint(1, 28)} {months[0]}",
        "date2": f"{rng.randint(1, 28)} {months[1]}",
        "sentence": rng.choice(_SENTENCES),
    }


def draw_other_question(rng: random.Random) -> tuple[str, str]:
    """Draw a random family; return one of its labels and a question with its slots filled."""
    family = rng.choice(_ORDER)
    label = rng.choice(family.labels)
    return label, rng.choice(family.wordings).format_map(_slots(rng))
