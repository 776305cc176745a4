"""How the questions of world 2 are worded: by family, for training and held out.

Twenty wordings of each training family, four held out; eight of each family that is held out as a
whole. Fixed with the world (design/0015-world-2.md): a changed word is another world.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FamilyWordings:
    """A family's templates, with a `{slot}` for each part that is drawn."""

    training: tuple[str, ...]
    held_out: tuple[str, ...]


WORDINGS: Mapping[str, FamilyWordings] = {
    "bills": FamilyWordings(
        training=(
            "Mara buys {items}. How many cents does she pay?",
            "What is the total in cents for {items}?",
            "A shop sells {items}. Give the whole bill in cents.",
            "Add up this order, in cents: {items}.",
            "I took {items} to the till. What did the cashier ask for, in cents?",
            "On the receipt stand {items}. Which sum in cents stands at the bottom?",
            "How much money, in cents, is needed for {items}?",
            "Please work out the price in cents of {items} together.",
            "Our class ordered {items}; how many cents must we collect?",
            "The basket holds {items}. Find its cost in cents.",
            "If you pay for {items}, how many cents leave your purse?",
            "Calculate the invoice for {items}. The result is wanted in cents.",
            "For the school fair we need {items}. What will that cost in cents?",
            "Someone orders {items} and pays exactly. How many cents is that?",
            "Sum in cents, please: {items}.",
            "Grandfather wants {items}. How many cents should I bring?",
            "Here is a list of purchases: {items}. State the total number of cents.",
            "Tell me in cents what {items} come to.",
            "The storekeeper charges for {items}. How large is the charge in cents?",
            "With {items} in the cart, what does one owe in cents?",
        ),
        held_out=(
            "Budget check: {items}. Amount due in cents?",
            "The treasurer reimburses {items}. Which amount in cents does she transfer?",
            "Nobody remembers the total, only that it was for {items}. Reconstruct it in cents.",
            "Price the following parcel in cents, nothing else: {items}.",
        ),
    ),
    "clock": FamilyWordings(
        training=(
            "Ilse leaves at {start} and spends {stages}. What time is it then?",
            "It is {start}. After {stages}, what does the clock show?",
            "A tour begins at {start} and consists of {stages}. When does it end?",
            "Starting at {start}, we do {stages}. At what time are we done?",
            "The day began at {start} with {stages}. What time was it afterwards?",
            "If one sets out at {start} and needs {stages}, when does one arrive?",
            "Add to {start} the following: {stages}. Give the time of day.",
            "My watch said {start}; then came {stages}. What does it say now?",
            "The crew starts at {start}. Planned are {stages}. When is the work over?",
            "What time comes after {stages} when the start is {start}?",
            "Work out the hour and minute: begin at {start}, then {stages}.",
            "A traveller departs at {start}. On the way are {stages}. Arrival time?",
            "From {start} on there were {stages}. Say what time it was at the end.",
            "The programme opens at {start} and goes on with {stages}. When is it finished?",
            "At {start} the baker starts: {stages}. When is the bread ready?",
            "Please compute the end time of a shift from {start} with {stages}.",
            "Suppose it is {start}, and {stages} follow. Which time of day is reached?",
            "The film crew meets at {start}; there will be {stages}. When can they go home?",
            "Clock in at {start}, then {stages}. Clock out when?",
            "We had {stages}, and it all began at {start}. When did it end?",
        ),
        held_out=(
            "Timetable: first {start}, afterwards {stages}. Closing time?",
            "Anton's alarm rang at {start}. Then followed {stages}. What says the wall clock now?",
            "How late does it get if a session opens at {start} and contains {stages}?",
            "Schedule check for a {start} start with {stages}: name the finishing time.",
        ),
    ),
    "letters": FamilyWordings(
        training=(
            "Take the last letter of each of these words and join them: {words}.",
            "Which string do the last letters of {words} make?",
            "Write down the final letter of every word and put them together: {words}.",
            "Last letters only, in order, of {words}. What do you get?",
            "From the words {words} keep just the last letter of each. Join them.",
            "If you read only the ends of {words}, which letters do you read?",
            "Join the closing letters of {words}.",
            "What comes out when the last letters of {words} are written in a row?",
            "Concatenate the last letters of the list {words}.",
            "A code is made of the last letter of each word. The words are {words}. The code?",
            "Cut everything but the last letter from {words} and glue the rest.",
            "Form one string out of the word endings, one letter each: {words}.",
            "Look at {words}. Spell out their last letters without spaces.",
            "The password is hidden in the last letters of {words}. What is it?",
            "For each of {words} note the letter it ends with; give all notes as one string.",
            "String together what {words} end in, one letter a word.",
            "Give me the end letters of {words} in one piece.",
            "Each word ends in a letter: {words}. Write these letters side by side.",
            "Going through {words}, collect the last letters. Which string results?",
            "Make an acronym from the back: the last letters of {words}.",
        ),
        held_out=(
            "Telegram in code, where only word endings count: {words}. Decode it.",
            "Suppose a typewriter prints only the tail letter of {words}. What is on paper?",
            "The tails of {words}, one character each, no gaps, please.",
            "Read down the right-hand edge of the words {words}: which letters appear?",
        ),
    ),
    "almanac": FamilyWordings(
        training=(
            "How many lighthouses do {towns} have together?",
            "Add the lighthouses of {towns}.",
            "According to the coast almanac, how many lighthouses stand in {towns} in all?",
            "What is the number of lighthouses in {towns} taken together?",
            "Count all lighthouses of {towns}.",
            "A sailor passes every lighthouse of {towns}. How many does he pass?",
            "Sum up the lighthouses of {towns}, please.",
            "Give the joint number of lighthouses for {towns}.",
            "The keepers of {towns} meet, one from each lighthouse. How many keepers are there?",
            "If each lighthouse in {towns} needs one lamp, how many lamps are needed?",
            "How many lighthouses would a map of {towns} show?",
            "Taking {towns}, find the total of their lighthouses.",
            "I want to photograph all lighthouses in {towns}. How many photographs is that?",
            "Tell me how many lighthouses there are across {towns}.",
            "The council lists {towns}. How many lighthouses belong to them?",
            "What do the lighthouses of {towns} add up to?",
            "In {towns} every lighthouse gets a new door. How many doors are ordered?",
            "Lighthouses in {towns}: how many altogether?",
            "Name the combined number of lighthouses of {towns}.",
            "One postcard goes to each lighthouse of {towns}. How many postcards are sent?",
        ),
        held_out=(
            "The harbour office inspects {towns}, lighthouse by lighthouse. Number of inspections?",
            "At dusk the lights of {towns} go on, one a lighthouse. How many lights burn?",
            "For a painter who charges by lighthouse, how many would {towns} be?",
            "Along the coast from end to end lie {towns}. State how many lighthouses guard it.",
        ),
    ),
    "walks": FamilyWordings(
        training=(
            "Bo walks {legs}. How many steps is it back home along the grid?",
            "From the origin go {legs}. What is the grid distance to the start?",
            "A robot moves {legs}. How many unit moves take it back?",
            "After {legs}, how far is one from the start, counted in streets and avenues?",
            "Someone wanders {legs}. Give the steps of the shortest way back on the grid.",
            "The ant crawls {legs}. How many squares is it from its nest, not diagonally?",
            "Follow these moves: {legs}. How far from the start do you end, in grid steps?",
            "Walk {legs}. What is the Manhattan distance to where you began?",
            "Start at a crossing and drive {legs}. How many blocks must you drive home at least?",
            "If a knight on foot goes {legs}, how many steps away from his tent is he on the grid?",
            "Compute the grid distance covered in the end by {legs}.",
            "A delivery cart takes {legs}. How many blocks lie between it and the depot?",
            "We explored {legs}. How many steps are needed to return, without diagonals?",
            "Moving {legs}, one ends somewhere. How many grid steps away is that?",
            "The drone flies {legs}. How many grid units from its base does it hover?",
            "What is the least number of steps home after {legs}?",
            "Count the steps of the way back along streets after {legs}.",
            "Take {legs} on squared paper. How many lines of the grid to the starting point?",
            "A postman does {legs}. How many blocks is he away from the post office?",
            "Suppose you stroll {legs}. How many steps separate you from the start on the grid?",
        ),
        held_out=(
            "Treasure note: {legs}. And how many paces along the grid straight back to the oak?",
            "The lost glove lies at the start; she went {legs}. Fewest street steps to fetch it?",
            "Log of a rover: {legs}. Report its grid distance to the lander.",
            "Having gone {legs}, in how many axis-parallel steps can one be back?",
        ),
    ),
    "ranks": FamilyWordings(
        training=(
            "{facts}. Who is the {which}?",
            "We know that {facts}. Name the {which} of them.",
            "Given: {facts}. Which of them is the {which}?",
            "Here is what was seen: {facts}. Who is {which} of all?",
            "In a class, {facts}. Tell me who is the {which}.",
            "If {facts}, who then is the {which}?",
            "Order them: {facts}. The {which} one is who?",
            "Suppose {facts}. Find the {which}.",
            "From these facts, say who is the {which}: {facts}.",
            "They stood back to back: {facts}. Who turned out the {which}?",
            "The coach notes that {facts}. Whom does he call the {which}?",
            "Puzzle: {facts}. Who is the {which}?",
            "Decide who is the {which}, knowing that {facts}.",
            "Who is the {which}, when {facts}?",
            "Read carefully: {facts}. Give the name of the {which}.",
            "A photographer wants the {which} in front; {facts}. Whom does she ask?",
            "All are of different height: {facts}. Who is the {which}?",
            "My cousins compare: {facts}. Which cousin is the {which}?",
            "At the doctor's it was found that {facts}. Who is the {which}?",
            "Find out from the following who is the {which}. {facts}.",
        ),
        held_out=(
            "Casting call: {facts}. The director needs the {which}. Whom does he pick?",
            "Statements of witnesses: {facts}. So the {which} must be whom?",
            "To hang the lamp one asks the {which}. Known is: {facts}. Who is asked?",
            "Sort the family by height with {facts}; who is the {which}?",
        ),
    ),
    "mixtures": FamilyWordings(
        training=(),
        held_out=(
            "Pour together {vessels}. How many millilitres is that?",
            "A cook mixes {vessels}. Give the volume in millilitres.",
            "How many millilitres do {vessels} make?",
            "The bucket takes {vessels}. What does it hold, in millilitres?",
            "In the laboratory {vessels} are combined. State the millilitres.",
            "Total volume, in millilitres, of {vessels}?",
            "The punch consists of {vessels}. How many millilitres of punch are there?",
            "Empty {vessels} into one barrel. How many millilitres are in it?",
        ),
    ),
    "shifts": FamilyWordings(
        training=(),
        held_out=(
            "Move each letter of {word} forward by {places} in the alphabet. What do you get?",
            "Encrypt {word} with a Caesar shift of {places}.",
            "Replace every letter of {word} by the one {places} further on. Which string is it?",
            "What does {word} become when all its letters go {places} on in the alphabet?",
            "Caesar's clerk writes {word} with key {places}. What does he write?",
            "Shift {word} by {places}, letter by letter.",
            "Turn the alphabet by {places} and write {word} with it.",
            "Write {word} in the cipher that advances each letter by {places}.",
        ),
    ),
}
"""Wordings by family, in the order of the world's cards."""
